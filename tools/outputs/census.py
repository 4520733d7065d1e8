"""Output schemas of the census."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from pinwarden.census.observation import ResultState
from tools.outputs.parts import LEVEL, output
from tools.schema_words import CODE, COUNT, FULL_TEXT, TEXT, Schema, array, exactly, one_of, or_null


def _run(command: str) -> Schema:
    finding = exactly(
        {
            "server": FULL_TEXT,
            "origin": one_of(("artifact", "drift", "scan")),
            "severity": LEVEL,
            "code": CODE,
            **dict.fromkeys(("entity", "name", "message"), TEXT),
        }
    )
    body = exactly(
        {
            "run": COUNT,
            "source": FULL_TEXT,
            "servers": COUNT,
            "done": COUNT,
            "states": exactly({}, dict.fromkeys(get_args(ResultState), COUNT)),
            "started_at": FULL_TEXT,
            "finished_at": or_null(FULL_TEXT),
            "failures": array(exactly({"code": CODE, "reason": TEXT, "servers": COUNT})),
            "findings": array(finding),
            "unusable": array(exactly({"server": FULL_TEXT, "message": TEXT})),
        }
    )
    return output(command, body)


def run() -> Schema:
    return _run("census run")


def status() -> Schema:
    return _run("census status")


def diff() -> Schema:
    facts = ("server", "state", "version", "artifact", "publisher", "provenance", "surface")
    change = exactly({"server": FULL_TEXT, "fact": one_of(facts), "before": TEXT, "after": TEXT})
    body = exactly({"before": COUNT, "after": COUNT, "source": FULL_TEXT, "changes": array(change)})
    return output("census diff", body)


BY_COMMAND: dict[str, Callable[[], Schema]] = {"census run": run, "census status": status, "census diff": diff}
