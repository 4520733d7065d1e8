"""Every page of a registry in a real browser: wide and narrow, light and dark, with hostile content."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.registry.pages.hostile import HOSTILE_TEXT, SCRIPT
from tests.support.browser import Browser, needs_browser
from tests.support.needs import needs

pytestmark = [needs_browser, needs("bwrap", install="apt-get install bubblewrap")]
PAGES = {
    "start": "",
    "search": "?q=notes",
    "nothing-found": "?q=zzz",
    "hostile-query": "?q=" + quote(HOSTILE_TEXT[:190]),
    "no-such-page": "?page=7",
    "package": "packages/acme.notes/",
    "older-version": "packages/acme.notes/1.0.0/",
    "yanked-version": "packages/acme.notes/1.2.0/",
    "prompts-only": "packages/acme.weather/",
    "offers-nothing": "packages/acme.empty/",
    "comparison": "packages/acme.notes/compare/1.1.0/1.2.0/",
    "same-version": "packages/acme.notes/compare/1.1.0/1.1.0/",
    "hostile-package": "packages/evil.bundle/",
    "hostile-yank": "packages/evil.bundle/1.0.0/",
    "hostile-comparison": "packages/evil.bundle/compare/1.0.0/2.0.0/",
    "publisher": "publishers/acme/",
    "empty-publisher": "publishers/unused/",
    "log": "log/",
    "log-lookup": "log/?q=acme.notes",
    "log-nothing-found": "log/?q=" + quote(SCRIPT),
    "log-entry": "log/entries/1/",
    "not-found": "packages/acme.unknown/",
    "bad-request": "?page=x",
}
LAYOUTS = {
    "wide-light": (1280, False),
    "wide-dark": (1280, True),
    "narrow-light": (390, False),
    "narrow-dark": (390, True),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits_in_every_layout(browser: Browser, site: str, name: str) -> None:
    """Attack: scripts, event handlers, bidirectional overrides and endless words in every text of a bundle."""
    problems = []
    for layout, (width, dark) in LAYOUTS.items():
        browser.show(width=width, dark=dark)
        browser.open(site + PAGES[name])
        problems += [f"{layout}: {message}" for message in browser.messages() if "status of 4" not in message]
        if browser.overflow():
            problems.append(f"{layout}: {browser.overflow()} pixels too wide")
        if layout in ("wide-light", "narrow-dark"):  # the contrast of every colour has a test of its own
            problems += [f"{layout}: {found}" for found in browser.find_accessibility_problems()]
        browser.save_screenshot(f"{name}-{layout}")
        assert browser.driver.title != "pwned"
    browser.show(width=320, dark=False)
    if browser.overflow():
        problems.append(f"320 pixels: {browser.overflow()} pixels too wide")
    assert problems == []
    structure = browser.run(
        "return [document.querySelectorAll('h1').length, document.querySelectorAll('main, header, footer').length,"
        " document.querySelectorAll('script, iframe, style, img, [style], [onerror], [onload]').length]"
    )
    assert structure == [1, 3, 0]
