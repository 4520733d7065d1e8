"""Render pages: templates with the common layout, the style sheet, and the headers that every page is sent with.

Every text in a template is escaped with its hidden characters visible. Inside an attribute, text needs ``|attribute``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pinwarden.core.record import Record
from pinwarden.core.text import parse_timestamp, plural
from pinwarden.html.markup import show_attribute, show_changes, show_sides, show_text

HTML = "text/html; charset=utf-8"
ASSETS = {"assets/style.css": "text/css; charset=utf-8", "assets/icon.svg": "image/svg+xml"}
"""The files that pages load, with their media types."""
_FOLDER = Path(__file__).parent
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_SCRIPT_POLICY = "script-src 'self'; connect-src 'self'"


def build_page_headers(*, scripts: bool = False) -> dict[str, str]:
    """Return the headers of pages. They allow nothing from elsewhere, and no script except with ``scripts``.

    With ``scripts``, browsers also send the origin of forms, which would be ``null`` without any referrer.
    """
    policy = f"{_POLICY}; {_SCRIPT_POLICY}" if scripts else _POLICY
    return {
        "content-security-policy": f"{policy}; frame-ancestors 'none'",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "referrer-policy": "same-origin" if scripts else "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
    }


PAGE_HEADERS = build_page_headers()
"""The headers of pages without scripts and without forms that change something."""


class PageContent(Record):
    """The template of a page, and its values."""

    template: str
    values: Mapping[str, Any]
    media_type: str = HTML


class Pages:
    """The templates of some folders, with the common layout."""

    def __init__(self, *folders: Path) -> None:
        self._environment = Environment(
            loader=FileSystemLoader([*folders, _FOLDER / "templates"]),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            attribute=show_attribute,
            changes=lambda pair: show_changes(*pair),
            moment=format_moment,
            plural=plural,
            sides=lambda pair: show_sides(*pair),
        )

    def render(self, template: str, path: str, context: Mapping[str, Any], *, is_static: bool = False) -> bytes:
        """Render the page at a path of the site. Links are relative, so a site can be below any address.

        A static page repeats the Content Security Policy, because its web server does not send it.
        """
        text = self._environment.get_template(template).render(
            context,
            link=partial(_build_link, path, is_static=is_static),
            policy=_POLICY if is_static else None,
            is_static=is_static,
        )
        return text.encode("utf-8", "replace")


@cache
def read_asset(path: str) -> bytes:
    """Return one of the files that pages load."""
    return (_FOLDER / path).read_bytes()


def _build_link(page: str, target: str, *, is_static: bool) -> str:
    """Return the relative address of a target from a page. Static pages also work without a web server."""
    root = "../" * page.count("/")
    path = target + ("index.html" if is_static and (not target or target.endswith("/")) else "")
    return quote(root + path, safe="/.+~-_") or "./"


def format_moment(text: str, now: str | None = None) -> Markup:
    """Return a timestamp in UTC and, if ``now`` is given, relative to it."""
    moment = parse_timestamp(text)
    if moment is None:
        return show_text(text)
    utc = moment.astimezone(UTC)
    relative = f" ({_format_distance(parse_timestamp(now), utc)})" if now else ""
    shown = f"{utc.day} {utc:%b %Y, %H:%M} UTC{relative}"
    return Markup('<time datetime="{}">{}</time>').format(f"{utc:%Y-%m-%dT%H:%M:%SZ}", shown)


_UNITS = ((31_536_000, "year"), (2_592_000, "month"), (86_400, "day"), (3_600, "hour"), (60, "minute"))


def _format_distance(now: datetime | None, moment: datetime) -> str:
    seconds = round((now - moment).total_seconds()) if now else 0
    for length, unit in _UNITS:
        if abs(seconds) >= length:
            count = plural(abs(seconds) // length, unit)
            return f"{count} ago" if seconds > 0 else f"in {count}"
    return "just now" if seconds >= 0 else "in less than a minute"


def _finalize(value: Any) -> Any:
    """Escape text before Jinja would, so that no text reaches a page with hidden characters."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return show_text(value)
    return value
