"""Output schemas of the commands that check a project and this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from pinwarden.clients.drift import CONFIG_KINDS, ENTITY
from pinwarden.clients.findings import FINDING_KINDS
from pinwarden.project.config_secrets import SecretKind
from pinwarden.project.configured_servers import IssueKind
from pinwarden.project.gate.gate_report import CHECKS
from tools.outputs.parts import CLIENT, KEY, LEVEL, POINTER, SCOPE, change, output, problem, report_row
from tools.schema_words import COUNT, FULL_TEXT, TEXT, TRUTH, Schema, array, exactly, one_of, or_null, ref


def ci() -> Schema:
    status = one_of(("ok", "failed", "skipped", "none"))
    checks = CHECKS
    body = exactly(
        {
            "ok": TRUTH,
            "checkedEntries": COUNT,
            "checks": exactly(dict.fromkeys(checks, status)),
            "failures": array(ref("row")),
            "requested": exactly({"registry": COUNT, "bytes": COUNT, "live": COUNT}),
            "unchecked": array(ref("row")),
            "remarks": array(ref("row")),
            "notes": array(TEXT),
            "clientsLookedFor": array(TEXT),
            "projects": array(
                exactly({"lock": TEXT, "checkedEntries": COUNT, "checks": exactly(dict.fromkeys(checks, status))})
            ),
        }
    )
    return output(
        "ci",
        body,
        "The checks that were made, their findings and notes, and checks that were skipped or could not be completed.",
        row=report_row(),
    )


def doctor() -> Schema:
    issue = exactly(
        {
            "key": KEY,
            "kind": one_of(get_args(IssueKind)),
            "client": CLIENT,
            "serverName": TEXT,
            "file": TEXT,
            "message": TEXT,
            "changes": array(change((ENTITY,), CONFIG_KINDS)),
        },
        {"scope": SCOPE},
    )
    location = {
        "client": CLIENT,
        "scope": SCOPE,
        "file": FULL_TEXT,
        "pointer": POINTER,
        "severity": LEVEL,
        "message": TEXT,
    }
    stranger = exactly({"server": TEXT, **location, "code": one_of(CONFIG_KINDS)})
    finding = exactly({"server": TEXT, **location, "code": one_of(FINDING_KINDS)})
    file = exactly(
        {
            "client": CLIENT,
            "scope": SCOPE,
            "path": FULL_TEXT,
            "servers": COUNT,
            "fault": or_null(one_of(("unreadable", "invalid"))),
        }
    )
    program = exactly({"name": FULL_TEXT, "path": or_null(FULL_TEXT), "needed_by": array(TEXT)})
    body = exactly(
        {
            "ok": TRUTH,
            "checked": COUNT,
            "issues": array(issue),
            "unknownServers": array(stranger),
            "findings": array(finding),
            "secrets": array(_secret_finding()),
            "files": array(file),
            "programs": array(program),
            "lock": exactly({"found": TRUTH, "problems": array(ref("problem"))}),
        }
    )
    return output("doctor", body, problem=problem())


def secrets_audit() -> Schema:
    body = exactly({"ok": TRUTH, "checked": COUNT, "servers": COUNT, "findings": array(_secret_finding())})
    return output("secrets audit", body, "The locations of plaintext secrets, never their values.")


def _secret_finding() -> Schema:
    secret: dict[str, Schema] = {
        "secretName": TEXT,
        "secretSource": one_of(("env", "header", "args", "url", "input", "member")),
        "redactedValue": {"const": "[REDACTED]"},
    }
    return exactly(
        {
            "kind": one_of(get_args(SecretKind)),
            "key": TEXT,
            "client": CLIENT,
            "serverName": TEXT,
            "file": TEXT,
            "message": TEXT,
        },
        {"scope": SCOPE, **secret},
        dependentRequired={name: [other for other in secret if other != name] for name in secret},
    )


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "ci": ci,
    "doctor": doctor,
    "secrets audit": secrets_audit,
}
