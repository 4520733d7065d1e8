"""Changes as rows of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.core.report import Row
from pinwarden.surface.drift.changes import ABSENT, Change

if TYPE_CHECKING:
    from pinwarden.core.errors import PinwardenError

_LONGEST = 400  # characters of a value that is not text
_LONGEST_ALONE = 2000  # of a value without a counterpart, such as a server that is not approved


def change_row(change: Change, *, whole: bool = False) -> Row:
    """A change as a row of a report. ``whole`` keeps long values complete, for approvals."""
    before, after = _text_of(change.before), _text_of(change.after)
    if not whole and not isinstance(change.before, str) and not isinstance(change.after, str):
        before, after = _shortened(before, after)
    return Row(
        code=change.kind,
        severity=change.severity,
        entity=change.entity,
        name=change.name,
        path=change.path,
        message=change.reason,
        before=before,
        after=after,
    )


def _shortened(before: str | None, after: str | None) -> tuple[str | None, str | None]:
    if max(len(before or ""), len(after or "")) <= _LONGEST:
        return before, after
    from pinwarden.surface.drift.text_diff import omit_common_text, shorten_middle

    if before is not None and after is not None:
        return omit_common_text(before, after, _LONGEST)
    return before and shorten_middle(before, _LONGEST_ALONE), after and shorten_middle(after, _LONGEST_ALONE)


def _text_of(value: Any) -> str | None:
    if value is ABSENT:
        return None
    if isinstance(value, str):
        return value
    from json import dumps

    return dumps(value, ensure_ascii=False)


def stderr_tail(err: PinwardenError) -> str | None:
    """The end of the stderr of a server that could not be asked."""
    said = err.data.get("stderr")
    return said if isinstance(said, str) and said else None
