"""The page with the changes between two versions, from the result of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pinwarden.core.record import Record
from pinwarden.html.pages import PageContent
from pinwarden.surface.drift.changes import ABSENT, Change, parse_change

_MAX_CHANGES = 200
_MAX_FILES = 200
_LEVELS = {"critical": "critical", "review": "review", "info": "info"}


class ShownChange(Record):
    """One change of a surface on a page."""

    level: str
    title: str
    reason: str
    path: str
    sentence: str
    texts: tuple[str, str] | None
    """Both texts to compare; None if there is none."""


def build_compare_page(versions: Sequence[str], compared: Mapping[str, Any]) -> PageContent:
    """Build the page from a bundle, two of its versions, and the members of their comparison."""
    tool, before, after = versions
    drift = compared["drift"]
    changes = [parse_change(value) for value in drift["changes"]] if drift is not None else []
    counts = {level: sum(change.severity == level for change in changes) for level in _LEVELS}
    values = {
        "tool": tool,
        "before": before,
        "after": after,
        "same_content": compared["same_content"],
        "api_surface": compared["api_surface"],
        "has_drift": drift is not None,
        "blocked": drift is not None and drift["blocked_by_default"],
        "counts": counts,
        "changes": [_describe_change(change) for change in changes[:_MAX_CHANGES]],
        "omitted": max(0, len(changes) - _MAX_CHANGES),
        "files": [
            (heading, paths[:_MAX_FILES], len(paths))
            for heading, name in (("Added", "added"), ("Removed", "removed"), ("Changed", "changed"))
            if (paths := compared["files"][name])
        ],
    }
    return PageContent(template="compare.html", values=values)


def _describe_change(change: Change) -> ShownChange:
    title = change.entity if change.entity == "server" else f"{change.entity} {change.name}"
    texts = None
    if change.before is not ABSENT or change.after is not ABSENT:
        texts = _to_text(change.before), _to_text(change.after)
    return ShownChange(
        level=_LEVELS[change.severity],
        title=title,
        reason=change.reason,
        path=change.path,
        sentence=change.sentence if change.sentence and not _is_visible(change) else "",
        texts=texts,
    )


def _is_visible(change: Change) -> bool:
    """Whether the sentence is the whole changed text, which is shown anyway."""
    return bool(change.sentence == change.after)


def _to_text(value: Any) -> str:
    if value is ABSENT:
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)
