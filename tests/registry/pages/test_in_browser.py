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
    "package": "bundles/acme.notes/",
    "older-version": "bundles/acme.notes/1.0.0/",
    "yanked-version": "bundles/acme.notes/1.2.0/",
    "prompts-only": "bundles/acme.weather/",
    "offers-nothing": "bundles/acme.empty/",
    "comparison": "bundles/acme.notes/compare/1.1.0/1.2.0/",
    "same-version": "bundles/acme.notes/compare/1.1.0/1.1.0/",
    "hostile-package": "bundles/evil.bundle/",
    "hostile-yank": "bundles/evil.bundle/1.0.0/",
    "hostile-comparison": "bundles/evil.bundle/compare/1.0.0/2.0.0/",
    "publisher": "publishers/acme/",
    "empty-publisher": "publishers/unused/",
    "log": "log/",
    "log-lookup": "log/?q=acme.notes",
    "log-nothing-found": "log/?q=" + quote(SCRIPT),
    "log-entry": "log/entries/1/",
    "not-found": "bundles/acme.unknown/",
    "bad-request": "?page=x",
}
NARROW, NARROWEST, WIDE = 390, 320, 1280


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_and_fits_wide_and_narrow(browser: Browser, site: str, name: str) -> None:
    """Attack: scripts, event handlers, bidirectional overrides and endless words in every text of a bundle."""
    problems = find_problems(browser, site, name, WIDE, dark=False) + find_problems(
        browser, site, name, NARROW, dark=True, accessible=True
    )
    browser.show(width=NARROWEST, dark=True)
    if browser.overflow():
        problems.append(f"{NARROWEST} pixels: {browser.overflow()} pixels too wide")
    assert problems == []
    structure = browser.run(
        "return [document.querySelectorAll('h1').length, document.querySelectorAll('main, header, footer').length,"
        " document.querySelectorAll('script, iframe, style, img, [style], [onerror], [onload]').length]"
    )
    assert structure == [1, 3, 0]
    assert browser.driver.title != "pwned"


@pytest.mark.soak
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_in_every_layout(browser: Browser, site: str, name: str) -> None:
    layouts = [(width, dark) for width in (WIDE, NARROW) for dark in (False, True)]
    found = [find_problems(browser, site, name, width, dark=dark, accessible=True) for width, dark in layouts]
    assert [problem for problems in found for problem in problems] == []


def find_problems(
    browser: Browser, site: str, name: str, width: int, *, dark: bool, accessible: bool = False
) -> list[str]:
    """Open a page, and return what the browser, its layout and axe-core complain about."""
    layout = f"{width}-{'dark' if dark else 'light'}"
    browser.show(width=width, dark=dark)
    browser.open(site + PAGES[name])
    problems = [message for message in browser.messages() if "status of 4" not in message]
    if browser.overflow():
        problems.append(f"{browser.overflow()} pixels too wide")
    problems += browser.find_accessibility_problems() if accessible else []
    browser.save_screenshot(f"{name}-{layout}")
    return [f"{layout}: {problem}" for problem in problems]
