"""Output schemas of the commands about the gateway, its reviews and its audit log."""

from __future__ import annotations

from collections.abc import Callable

from pinwarden.alerts.alert import TOPICS
from pinwarden.alerts.outbox import FAILED, PENDING, SENT
from pinwarden.core.record import field_names
from pinwarden.gateway.audit import event as audit_chain
from pinwarden.gateway.audit import event as gateway_event
from pinwarden.gateway.store import reviews
from pinwarden.identity import settings
from tools.document_schemas import any_digest
from tools.outputs.parts import ENTITIES, output, surface_change
from tools.schema_words import (
    ANYTHING,
    COUNT,
    FULL_TEXT,
    SHA256,
    TEXT,
    TRUTH,
    Schema,
    array,
    exactly,
    mapping,
    one_of,
    or_null,
    ref,
)

_PLACES = ("lock", "store", "database")


def review() -> Schema:
    """Return the schema of a blocked change, which is pending review or decided."""
    texts = ("server", "baseline", "item", "level", "code", "reason", "opened", "last_seen")
    return exactly(
        {
            "name": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
            **dict.fromkeys(texts, TEXT),
            "entity": one_of(ENTITIES),
            "digest": or_null(SHA256),
            "expected": array(any_digest()),
            "state": one_of(reviews.STATES),
            **dict.fromkeys(("decided", "decided_by", "why"), TEXT),
        },
        {"not_followed_by": array(TEXT)},
    )


def review_list() -> Schema:
    return output("review list", exactly({"reviews": array(ref("review"))}), review=review())


def review_show() -> Schema:
    body = exactly(
        {
            "review": ref("review"),
            "definition": ANYTHING,
            "approval_goes_to": or_null(FULL_TEXT),
            "changes": array(ref("change")),
        }
    )
    return output("review show", body, review=review(), change=surface_change())


def review_approve() -> Schema:
    written = exactly({"kind": one_of(_PLACES), "place": FULL_TEXT})
    decided = {"reviews": array(ref("review"), minItems=1), "by": FULL_TEXT, "why": TEXT}
    return output("review approve", exactly({**decided, "written": array(written, minItems=1)}), review=review())


def review_reject() -> Schema:
    body = exactly({"reviews": array(ref("review"), minItems=1), "by": FULL_TEXT, "why": TEXT})
    return output("review reject", body, review=review())


def review_reopen() -> Schema:
    written = exactly({"kind": one_of(_PLACES), "place": FULL_TEXT})
    reopened = {"reviews": array(ref("review"), minItems=1), "by": FULL_TEXT, "why": TEXT, "written": array(written)}
    return output("review reopen", exactly(reopened), review=review())


def audit_verify() -> Schema:
    broken = exactly({"number": {"type": "integer"}, "code": one_of(audit_chain.MESSAGES), "message": FULL_TEXT})
    body = exactly(
        {
            "ok": TRUTH,
            "entries": COUNT,
            "head": exactly({"number": COUNT, "hash": SHA256}),
            "breaks": array(broken),
            "heads_checked": COUNT,
        }
    )
    return output("audit verify", body)


def audit_tail() -> Schema:
    texts = (name for name in field_names(gateway_event.AuditEvent) if name not in ("kind", "expected"))
    fact = exactly(
        {"kind": one_of(gateway_event.KINDS)}, {**dict.fromkeys(texts, FULL_TEXT), "expected": array(TEXT, minItems=1)}
    )
    count: Schema = {"type": "integer", "minimum": 1}
    entry = exactly(
        {"number": count, "at": FULL_TEXT, "gateway": TEXT, "source": FULL_TEXT, "nth": count, "fact": ref("fact")}
    )
    return output("audit tail", exactly({"entries": array(entry)}), fact=fact)


def audit_export() -> Schema:
    head = exactly({"number": COUNT, "hash": SHA256})
    description = "Printed after an export to a file. The exported file is JSON Lines, with one stored entry per line."
    return output("audit export", exactly({"file": FULL_TEXT, "entries": COUNT, "head": head}), description)


def gateway() -> Schema:
    body = exactly(
        {
            "servers": mapping(FULL_TEXT),
            "merged": FULL_TEXT,
            "not_served": mapping(FULL_TEXT),
            "unapproved": array(FULL_TEXT),
        },
    )
    return output(
        "gateway", body, "Printed when the gateway starts: its addresses, and the servers that are not served."
    )


def gateway_token() -> Schema:
    row = exactly(
        {
            "id": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
            "client": FULL_TEXT,
            "servers": array(FULL_TEXT),
            "scopes": array(FULL_TEXT),
            "teams": array(FULL_TEXT),
            "made_at": FULL_TEXT,
            "expires_at": or_null(FULL_TEXT),
            "revoked_at": or_null(FULL_TEXT),
        }
    )
    description = "The tokens that were added, listed or revoked. The secret is included only for an added token."
    return output("gateway token", exactly({"tokens": array(row)}, {"token": FULL_TEXT}), description)


def identity_check() -> Schema:
    token = exactly(
        {
            **dict.fromkeys(("subject", "client_id"), TEXT),
            **dict.fromkeys(("scopes", "groups", "audiences"), array(TEXT)),
            "expires_at": COUNT,
        }
    )
    body = exactly(
        {
            "issuer": FULL_TEXT,
            "keys": array(exactly({"id": or_null(TEXT), "algorithm": or_null(TEXT)}), minItems=1),
            "audiences": array(TEXT),
            "login": TRUTH,
            "pkce": TRUTH,
        },
        {"token": token},
    )
    return output("identity check", body)


def identity_login() -> Schema:
    texts = dict.fromkeys(("subject", "name", "email"), TEXT)
    return output("identity login", exactly({**texts, "groups": array(TEXT), "role": one_of(settings.ROLES)}))


def audit_archive() -> Schema:
    head = exactly({"number": COUNT, "hash": SHA256})
    body = {"file": or_null(TEXT), "digest": or_null(SHA256), "entries": COUNT, "head": or_null(head)}
    return output("audit archive", exactly(body))


def gateway_backup() -> Schema:
    head = exactly({"number": COUNT, "hash": SHA256})
    return output("gateway backup", exactly({"file": TEXT, "digest": SHA256, "entries": COUNT, "head": head}))


def gateway_restore() -> Schema:
    head = exactly({"number": COUNT, "hash": SHA256})
    return output("gateway restore", exactly({"file": TEXT, "entries": COUNT, "head": head}))


def alert() -> Schema:
    """Return the schema of an alert."""
    item = exactly({"name": TEXT, "level": TEXT, "reason": TEXT, "review": TEXT})
    texts = dict.fromkeys(("subject", "title", "command"), TEXT)
    return exactly({"topic": one_of(TOPICS), "count": COUNT, "items": array(item), **texts})


def alerts_test() -> Schema:
    return output("alerts test", exactly({"destinations": array(FULL_TEXT)}))


def alerts_list() -> Schema:
    texts = dict.fromkeys(("id", "destination", "created", "due", "problem"), TEXT)
    row = exactly({"state": one_of((PENDING, SENT, FAILED)), "attempts": COUNT, "alert": ref("alert"), **texts})
    return output("alerts list", exactly({"alerts": array(row)}), alert=alert())


def alerts_retry() -> Schema:
    return output("alerts retry", exactly({"retried": COUNT}))


def fleet_device() -> Schema:
    body = exactly({"name": FULL_TEXT, "group": FULL_TEXT, "revoked_at": or_null(FULL_TEXT)}, {"token": FULL_TEXT})
    return output("fleet device", body)


def fleet_join() -> Schema:
    body = exactly(
        {
            "url": FULL_TEXT,
            "name": FULL_TEXT,
            "group": FULL_TEXT,
            "has_policy": TRUTH,
            "fail_closed": or_null(COUNT),
        }
    )
    return output("fleet join", body, "How this machine follows the company's gateway.")


def fleet_leave() -> Schema:
    return output("fleet leave", exactly({"left": or_null(FULL_TEXT)}))


def fleet_sync() -> Schema:
    return output("fleet sync", exactly({"events": COUNT}), "The number of events that were sent.")


def fleet_status() -> Schema:
    server = exactly(
        {
            "server": FULL_TEXT,
            **dict.fromkeys(("client", "version", "surface", "lock"), or_null(FULL_TEXT)),
            "pending_reviews": COUNT,
            "started": FULL_TEXT,
            "drift": TRUTH,
        }
    )
    device = exactly(
        {
            **dict.fromkeys(("name", "group"), FULL_TEXT),
            **dict.fromkeys(("host", "program"), TEXT),
            **dict.fromkeys(("policy", "last_seen"), or_null(FULL_TEXT)),
            "servers": array(server),
        }
    )
    drift = exactly(
        {
            **dict.fromkeys(("group", "server"), FULL_TEXT),
            **dict.fromkeys(("version", "surface"), or_null(FULL_TEXT)),
            "devices": array(FULL_TEXT, minItems=1),
        }
    )
    return output("fleet status", exactly({"devices": array(device), "drift": array(drift)}))


def grant() -> Schema:
    """Return the schema of a grant for a remote server, which has no token."""
    texts = ("id", "server", "address", "issuer", "client_id", "resource", "connected_at", "connected_by")
    return exactly(
        {
            **dict.fromkeys(texts, TEXT),
            "owner": exactly({"issuer": TEXT, "subject": TEXT}),
            **dict.fromkeys(("scopes", "wanted_scopes"), array(TEXT)),
            **dict.fromkeys(("token_expires_at", "problem"), or_null(TEXT)),
        }
    )


def remote_connect() -> Schema:
    return output("remote connect", exactly({"grant": ref("grant")}), grant=grant())


def remote_list() -> Schema:
    return output("remote list", exactly({"grants": array(ref("grant")), "missing": array(TEXT)}), grant=grant())


def remote_forget() -> Schema:
    return output("remote forget", exactly({"grants": array(ref("grant")), "revoked": COUNT}), grant=grant())


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "review list": review_list,
    "review show": review_show,
    "review approve": review_approve,
    "review reject": review_reject,
    "review reopen": review_reopen,
    "gateway": gateway,
    "gateway token": gateway_token,
    "fleet device": fleet_device,
    "fleet join": fleet_join,
    "fleet leave": fleet_leave,
    "fleet sync": fleet_sync,
    "fleet status": fleet_status,
    "alerts test": alerts_test,
    "alerts list": alerts_list,
    "alerts retry": alerts_retry,
    "audit verify": audit_verify,
    "audit tail": audit_tail,
    "audit export": audit_export,
    "audit archive": audit_archive,
    "remote connect": remote_connect,
    "remote list": remote_list,
    "remote forget": remote_forget,
    "gateway backup": gateway_backup,
    "gateway restore": gateway_restore,
    "identity check": identity_check,
    "identity login": identity_login,
}
