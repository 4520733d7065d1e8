"""Output schemas of the commands that lock servers and show the lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from pinwarden.lock import server_entry
from pinwarden.project import skill_reports
from pinwarden.project import status as project_status
from pinwarden.project.init_decisions import State
from pinwarden.project.pin import Approval
from pinwarden.project.project import SCOPES
from pinwarden.skills import skill as skills
from tools.document_schemas import any_digest, lock_definitions, manifest
from tools.outputs import contracts
from tools.outputs.artifacts import api_surfaces
from tools.outputs.parts import (
    CLIENT,
    KEY,
    LEVEL,
    LOCK_CLIENT,
    LOCK_SCOPE,
    NAMED,
    POINTER,
    SCOPE,
    TIER,
    config_action,
    diff_members,
    evidence_row,
    output,
    problem,
    report_row,
    surface_change,
    undone,
)
from tools.schema_words import (
    CODE,
    FULL_TEXT,
    NUMBER,
    SHA256,
    SRI,
    TEXT,
    TRUTH,
    Schema,
    array,
    exactly,
    members,
    one_of,
    or_null,
    ref,
)


def init() -> Schema:
    server = exactly(
        {
            "name": TEXT,
            "client": CLIENT,
            "scope": SCOPE,
            "file": FULL_TEXT,
            "runs": or_null(TEXT),
            "pinned": TRUTH,
            "state": one_of(get_args(State)),
            "locked": TRUTH,
            "surface": or_null(SHA256),
            "reason": or_null(TEXT),
        }
    )
    finding = exactly(
        {
            "code": CODE,
            "severity": LEVEL,
            "server": TEXT,
            "file": FULL_TEXT,
            "pointer": POINTER,
            "message": TEXT,
        }
    )
    file = exactly({"client": CLIENT, "scope": SCOPE, "path": FULL_TEXT})
    places = array(FULL_TEXT, minItems=1)
    skill = exactly(
        {"name": TEXT, "places": places, "clients": array(CLIENT), "digest": or_null(SHA256), "locked": TRUTH}
    )
    body = exactly(
        {
            "clients": array(CLIENT, minItems=1),
            "files": array(file),
            "servers": array(server),
            "policy": or_null(TEXT),
            "skills": array(skill),
            "undecided": array(ref("row")),
            "findings": array(finding),
        }
    )
    description = (
        "The configured servers, the locked servers, the skills on disk, what needs a decision, and the findings."
    )
    return output("init", body, description, row=report_row())


def locked_members() -> dict[str, Schema]:
    return {
        "entries": array(exactly({"key": KEY, "integrity": SRI}), minItems=1),
        "tier": TIER,
        "surface": or_null(SHA256),
        "findings": array(NAMED),
    }


def lock() -> Schema:
    return output("lock", exactly(locked_members()))


def add() -> Schema:
    installed = array(config_action("created", "updated", "unchanged"), minItems=1)
    added = exactly({**locked_members(), "installed": installed})
    return output("add", {"oneOf": [added, undone()]}, row=report_row())


def pin() -> Schema:
    where = {"name": FULL_TEXT, "client": CLIENT, "scope": one_of(SCOPES), "file": FULL_TEXT}
    pinned = {
        "package": FULL_TEXT,
        "from": or_null(TEXT),
        "to": TEXT,
        "locked": TRUTH,
        "approval": one_of(get_args(Approval)),
    }
    body = {
        "written": TRUTH,
        "pins": array(exactly({**where, **pinned})),
        "unpinned": array(exactly({**where, "reason": TEXT})),
        "diff": or_null(FULL_TEXT),
    }
    description = "The pinned servers, with --dry-run the edits that would pin them, or with --undo what is restored."
    return output("pin", {"oneOf": [exactly(body), undone()]}, description, row=report_row())


def remove() -> Schema:
    configs = array(config_action("removed", "missing"))
    server = exactly({"removed": array(KEY, minItems=1), "configs": configs})
    skills = exactly({"removed": array(TEXT, minItems=1), "configs": array(TEXT, maxItems=0), "folders": array(TEXT)})
    return output("remove", {"oneOf": [server, skills, undone()]}, row=report_row())


def approve() -> Schema:
    rows = array(ref("row"), minItems=1)
    shown = {"warnings": rows, "configuration": rows}
    approved = {"approved": {"const": True}, "by": FULL_TEXT, "why": TEXT, "surface": SHA256}
    failed = {"error": exactly({"code": CODE, "message": TEXT})}
    name = {"name": TEXT}
    skill = {
        "skill": TEXT,
        "verdict": TEXT,
        "places": array(FULL_TEXT, minItems=1),
        "digest": or_null(SHA256),
        "powers": array(TEXT),
        "rows": array(ref("row")),
    }
    decided = {"approved": {"const": True}, "by": FULL_TEXT}
    skills = [exactly({"skill": TEXT}), exactly(skill), exactly({**skill, **decided})]
    server = {
        "oneOf": [
            exactly({**name, **diff_members()}, shown),
            exactly({**name, **diff_members(), **approved}, shown),
            exactly({**name, **failed}),
            *(exactly({**name, **shape["properties"]}) for shape in skills),
        ]
    }
    one = [exactly(diff_members(), shown), exactly({**diff_members(), **approved}, shown), exactly(failed)]
    one += skills
    return output(
        "approve",
        {"oneOf": [*one, exactly({"servers": array(ref("server"))})]},
        "The changes to approve, or with --yes the approved ones, by whom and why, and the warnings of the scan. With "
        "several servers, one object for each.",
        change=surface_change(),
        row=report_row(),
        server=server,
    )


def verify() -> Schema:
    issue = exactly({"severity": one_of(("info", "warning", "critical")), "code": CODE, "message": TEXT})
    verdict = exactly({"verdict": one_of(("verified", "needs-review", "blocked")), "reason": TEXT, "detailTier": TIER})
    body = exactly(
        {
            "ok": TRUTH,
            "serverName": FULL_TEXT,
            "capabilityManifest": ref("manifest"),
            "attestations": array(members({"type": TEXT})),
            "badges": array(TEXT),
            "evidence": array(evidence_row()),
            "issues": array(issue),
            "verifiedProvenance": TRUTH,
            "verdict": verdict,
            "tier": TIER,
            "reasons": array(TEXT),
            "remedies": array(TEXT),
            "findings": array(NAMED),
        },
        {"serverVersion": TEXT},
    )
    definitions = lock_definitions()
    used = {name: definitions[name] for name in ("record", "digest")}
    return output(
        "verify",
        {"oneOf": [body, contracts.verified_contract()]},
        "Verified, claimed and missing evidence; with --contract, the differences between server and contract.",
        manifest=manifest(),
        row=report_row(),
        **used,
    )


def outdated() -> Schema:
    row = exactly(
        {
            "name": FULL_TEXT,
            "client": CLIENT,
            "locked": TEXT,
            "latest": or_null(TEXT),
            "outdated": TRUTH,
            "problem": or_null(TEXT),
        }
    )
    return output("outdated", exactly({"entries": array(row)}))


def update() -> Schema:
    said = {"package": FULL_TEXT, "published_at": TEXT, "publisher": FULL_TEXT}
    newer = exactly({"name": FULL_TEXT, "client": CLIENT, "from": TEXT, "to": TEXT}, said)
    change = exactly({"code": CODE, "name": FULL_TEXT, "message": TEXT})
    failed = exactly({"name": FULL_TEXT, "message": TEXT})
    members = {
        "updates": array(newer),
        "renewals": array(FULL_TEXT),
        "written": TRUTH,
        "changes": array(change),
        "unchecked": array(failed),
    }
    skills = array(exactly({"name": FULL_TEXT, "from": TEXT, "to": TEXT, "written": TRUTH}))
    more = {"configs": array(failed), "warnings": array(ref("row")), "skills": skills}
    more["api_surfaces"] = api_surfaces()
    return output("update", {"oneOf": [exactly(members, more), undone()]}, row=report_row())


def status() -> Schema:
    return output("status", _status_body(), problem=problem())


def list_() -> Schema:
    return output("list", _status_body(), problem=problem())


def _status_body() -> Schema:
    state = one_of(get_args(project_status.State))
    server = exactly(
        {
            "name": FULL_TEXT,
            "scope": one_of(SCOPES),
            "clients": array(CLIENT),
            "files": array(FULL_TEXT),
            "package": TEXT,
            "version": or_null(TEXT),
            **dict.fromkeys(("locked", "pinned", "approved", "verified", "enforced"), state),
            "enforcement_obstacle": or_null(FULL_TEXT),
            "changed": TRUTH,
            "disabled": TRUTH,
            "last_checked": or_null(TEXT),
            "secrets": array(TEXT),
            "drift": array(TEXT),
            "blocked": array(TEXT),
            "next_step": or_null(one_of(project_status.STEPS)),
            "next_command": or_null(TEXT),
        }
    )
    secret = exactly({"server": TEXT, "client": CLIENT, "file": FULL_TEXT, "source": TEXT, "name": TEXT, "fix": TEXT})
    entry = exactly(
        {
            "name": FULL_TEXT,
            "version": or_null(TEXT),
            "client": LOCK_CLIENT,
            "scope": LOCK_SCOPE,
            "target": TEXT,
            "tier": or_null(TIER),
            "surface_pinned": TRUTH,
            "approved_by": or_null(TEXT),
            "locked_at": or_null(TEXT),
        }
    )
    skill = exactly(
        {
            "name": FULL_TEXT,
            "kind": one_of(get_args(skills.SkillKind)),
            "scope": one_of(SCOPES),
            "state": one_of(get_args(skill_reports.State)),
            "places": array(FULL_TEXT, minItems=1),
            "clients": array(CLIENT),
        }
    )
    return exactly(
        {
            "ok": TRUTH,
            "attention": TRUTH,
            "servers": array(server),
            "secrets": array(secret),
            "unreadable": array(FULL_TEXT),
            "entries": array(entry),
            "problems": array(ref("problem")),
            "skills": array(skill),
        }
    )


def explain() -> Schema:
    trust: dict[str, Schema] = {
        "tier": TIER,
        "overall_score": NUMBER,
        "meaning": TEXT,
        "reasons": array(TEXT),
        "remedies": array(TEXT),
    }
    sections = array(exactly({"heading": FULL_TEXT, "lines": array(TEXT)}), minItems=1)
    config = exactly(
        {}, {"command": array(TEXT), "url": TEXT, "env": array(TEXT), "headers": array(TEXT), "entry": TEXT}
    )
    locked = exactly(
        {
            "key": KEY,
            "version": or_null(TEXT),
            "client": LOCK_CLIENT,
            "scope": LOCK_SCOPE,
            "source": or_null(TEXT),
            "locked_at": or_null(TEXT),
            "target": TEXT,
            "config": or_null(config),
            "surface": or_null(any_digest()),
            "approval": or_null(exactly({"by": TEXT, "at": TEXT, "why": TEXT})),
            "trust": exactly({**trust, "locked_tier": TIER}),
            "sections": sections,
        }
    )
    finding = exactly({"severity": one_of(("info", "warning", "critical")), "code": CODE, "message": TEXT})
    registered = exactly(
        {
            "version": or_null(TEXT),
            "source": FULL_TEXT,
            "status": one_of(get_args(server_entry.Status)),
            "target": or_null(TEXT),
            "trust": exactly(trust),
            "findings": array(finding),
            "sections": sections,
        }
    )

    configured = exactly(
        {"client": TEXT, "scope": TEXT, "file": FULL_TEXT, "dangers": array(CODE), "sections": sections}
    )

    skill = exactly(
        {
            "name": FULL_TEXT,
            "kind": one_of(get_args(skills.SkillKind)),
            "scope": one_of(SCOPES),
            "digest": SHA256,
            "places": array(FULL_TEXT, minItems=1),
            "bundle": or_null(TEXT),
            "powers": array(TEXT),
            "approval": exactly({"by": TEXT, "why": TEXT}),
            "sections": sections,
        }
    )

    def shape(origin: str, entry: Schema, problems: Schema) -> Schema:
        return exactly(
            {
                "server": FULL_TEXT,
                "origin": {"const": origin},
                "entries": array(entry, minItems=1),
                "problems": problems,
            }
        )

    body = {
        "oneOf": [
            shape("lock", locked, array(ref("problem"))),
            shape("registry", registered, {"const": []}),
            shape("configuration", configured, {"const": []}),
            shape("skills", skill, {"const": []}),
        ]
    }
    return output("explain", body, problem=problem())


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "init": init,
    "lock": lock,
    "add": add,
    "pin": pin,
    "remove": remove,
    "approve": approve,
    "verify": verify,
    "outdated": outdated,
    "update": update,
    "explain": explain,
    "status": status,
    "list": list_,
}
