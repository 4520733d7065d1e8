"""``mcp-lock.json`` v2 to ``mcp-lock/1`` and back, without losing anything.

What the other format has no place for goes along in an extension: the v2 entry itself in ``extensions`` of a neutral
entry, the neutral entry itself in our record of a v2 entry. On the way back it is used only if it still says what
the entry around it says. An entry that the other format cannot express at all (an image by tag, a client that v2
does not know) is *set aside* in the extension of the whole document; ``set_aside`` names those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError
from pinwarden.lock import mcp_lock_1
from pinwarden.lock.entry import EXTENSION, Entry, InstallPlan, entry_key, new_entry
from pinwarden.lock.extension import Extension, extended
from pinwarden.lock.lockfile import Lock, sealed
from pinwarden.lock.mcp_lock_1 import NeutralLock, is_timestamp
from pinwarden.lock.shape import LOCK_CLIENTS, invalid
from pinwarden.lock.shape import check_shape as check_v2_entry
from pinwarden.lock.verification import refuse_if_tampered, same_json
from pinwarden.lock.verification import verify as verify_v2

NAMESPACE = "dev.pinwarden"
_V2 = "v2"
_NEUTRAL = "mcpLock1"
_UNKNOWN_TIME = "1970-01-01T00:00:00.000Z"  # v2 demands a time where the draft does not
_HEX = re.compile(r"[0-9a-f]{64}")

_CLIENT_IN_DRAFT = {"claude": "claude-code"}
_CLIENT_IN_V2 = {"claude-code": "claude"} | {client: client for client in LOCK_CLIENTS}
_REGISTRY_IN_DRAFT = {kind: kind for kind in ("npm", "oci", "mcpb", "pypi", "nuget")} | {"cargo": "io.crates"}
_REGISTRY_IN_V2 = {name: kind for kind, name in _REGISTRY_IN_DRAFT.items()}
_ARTIFACT_METHODS = {"oci_digest_verified": "oci-manifest-digest", "mcpb_sha256_verified": "mcpb-sha256"}


def to_neutral(lock: Lock) -> NeutralLock:
    """The lock as a document of the draft. A lock that is not whole is refused."""
    refuse_if_tampered(problem for problem in verify_v2(lock) if problem.code != "no_entries")
    if lock.seal is not None and _NEUTRAL in lock.seal:
        return _original_document(lock, lock.seal[_NEUTRAL])
    entries: list[Mapping[str, Any]] = []
    aside: dict[str, Any] = {}
    for entry in lock.entries:
        neutral = _neutral_entry(entry)
        if neutral is None:
            aside[entry.key] = entry.document
        else:
            entries.append(neutral)
    rest: dict[str, Any] = {"order": [entry.key for entry in lock.entries]}
    rest |= {"setAside": aside} if aside else {}
    rest |= {"seal": lock.seal} if lock.seal is not None else {}
    rest |= {"others": lock.others} if lock.others else {}
    times = {"generatedAt": lock.generated_at, "updatedAt": lock.updated_at}
    rest |= {name: text for name, text in times.items() if text is not None and not is_timestamp(text)}
    document = {
        "specVersion": mcp_lock_1.SPEC_VERSION,
        **{name: text for name, text in times.items() if text is not None and name not in rest},
        "entries": entries,
        "extensions": {NAMESPACE: {_V2: rest}},
    }
    return _checked(document)


def from_neutral(neutral: NeutralLock) -> Lock:
    """The document as a v2 lock. A document that is not whole is refused."""
    refuse_if_tampered(mcp_lock_1.verify(neutral))
    document = neutral.document
    rest = _own_extension(document).get(_V2)
    entries: dict[str, Entry] = {}
    aside: list[Any] = []
    for place, neutral_entry in enumerate(neutral.entries):
        entry = _v2_entry(neutral_entry, f"/entries/{place}")
        if entry is None or entry.key in entries:  # v2 has one place for a server and client, whatever the scope
            aside.append([place, neutral_entry])
        else:
            entries[entry.key] = entry
    if rest is not None:
        lock = _original_lock(document, _checked_remainder(rest), entries, aside)
        refuse_if_tampered(problem for problem in verify_v2(lock) if problem.code != "no_entries")
        return lock
    outside = {member: value for member, value in document.items() if member != "entries"}
    remainder: dict[str, Any] = {"document": outside, "at": list(document).index("entries")}
    remainder |= {"setAside": aside} if aside else {}
    return sealed(
        Lock(
            generated_at=document.get("generatedAt", _UNKNOWN_TIME),
            updated_at=document.get("updatedAt"),
            entries=tuple(entries.values()),
            seal={_NEUTRAL: remainder},
        )
    )


def set_aside(lock: Lock | NeutralLock) -> tuple[str, ...]:
    """The servers that are only carried along, because this format cannot express their entries."""
    if isinstance(lock, NeutralLock):
        return tuple(_object(_own_extension(lock.document).get(_V2)).get("setAside", {}))
    left_over = _object(lock.seal).get(_NEUTRAL)
    rows = [] if left_over is None else _checked_original(left_over)[2]
    return tuple(entry_key(str(row.get("name")), str(row.get("client"))) for _, row in rows)


# v2 to the draft


def _neutral_entry(entry: Entry) -> Mapping[str, Any] | None:
    original = _object(_object(entry.manifest.get(EXTENSION)).get(_NEUTRAL))
    if _is_neutral(original):
        made = _v2_entry(original, "")
        if made is not None and same_json(made.document, entry.document):
            return original
    neutral = _described(entry.document)
    neutral["extensions"] = {NAMESPACE: {_V2: entry.document}}
    neutral["integrity"] = mcp_lock_1.integrity_of(neutral)
    return neutral if _is_neutral(neutral) else None


def _is_neutral(entry: Any) -> bool:
    try:
        mcp_lock_1.check_entry(entry, "")
    except PinwardenError:
        return False
    return True


def _described(document: Mapping[str, Any]) -> dict[str, Any]:
    """What a v2 entry says in the words of the draft."""
    manifest, trust = _object(document.get("capabilityManifest")), _object(document["trust"])
    resolved = _object(document.get("resolved"))
    neutral = {
        "name": document["name"],
        "version": document["version"],
        "client": _CLIENT_IN_DRAFT.get(document["client"], document["client"]),
        "scope": "user" if document.get("scope") == "global" else "project",
        "source": {
            "registry": resolved.get("source") or "manual",
            **({"id": resolved["name"]} if resolved.get("name") else {}),
        },
        "target": _neutral_target(_object(document["selectedTarget"]), manifest, trust),
    }
    surface = _neutral_surface(_object(manifest.get("toolSurfaceHash")))
    if surface is not None:
        neutral["surface"] = surface
    neutral["configDigest"] = mcp_lock_1.digest_of(document.get("config"))
    neutral["verification"] = [_neutral_evidence(row) for row in trust.get("evidence", [])]
    return neutral | {member: document.get(member) for member in ("resolvedAt", "lockedAt")}


def _neutral_target(target: Mapping[str, Any], manifest: Mapping[str, Any], trust: Mapping[str, Any]) -> dict[str, Any]:
    if target.get("kind") == "remote":
        secrets = [row.get("name") for row in manifest.get("secrets", []) if _object(row).get("source") == "header"]
        names = [name for name in secrets if isinstance(name, str) and re.fullmatch("[A-Z][A-Z0-9_]*", name)]
        described = {"type": "remote", "transport": target.get("type"), "url": target.get("url")}
        return {**described, **({"headerSecretNames": names} if names else {})}
    kind = str(target.get("registryType"))
    package = {
        "type": "package",
        "registryType": _REGISTRY_IN_DRAFT.get(kind, f"dev.toolpin.{kind}"),
        "identifier": target.get("identifier"),
        **{member: target[member] for member in ("version", "transport") if member in target},
    }
    artifact = _verified_artifact(target, trust)
    return {**package, **({"artifact": artifact} if artifact else {})}


def _verified_artifact(target: Mapping[str, Any], trust: Mapping[str, Any]) -> dict[str, str] | None:
    """The digest of the bytes, only if somebody verified them; declared ones stay evidence."""
    found = {
        "oci_digest_verified": str(target.get("identifier")).rpartition("@sha256:")[2],
        "mcpb_sha256_verified": str(target.get("fileSha256")).lower(),
    }
    for row in trust.get("evidence", []):
        digest = found.get(row.get("code"), "")
        if row.get("status") == "passed" and row.get("verifiedByToolPin") is True and _HEX.fullmatch(digest):
            return {"digest": Digest(bytes.fromhex(digest)).sri, "method": _ARTIFACT_METHODS[row["code"]]}
    return None


def _neutral_surface(pin: Mapping[str, Any]) -> dict[str, Any] | None:
    value, coverage = str(pin.get("value")), pin.get("coverage", [])
    if not _HEX.fullmatch(value) or not {"name", "description"} <= set(coverage):
        return None
    described = {"hash": Digest(bytes.fromhex(value)).sri, "coverage": coverage, "toolCount": pin.get("toolCount")}
    captured = str(pin.get("generatedAt"))
    return {**described, **({"capturedAt": captured} if is_timestamp(captured) else {})}


def _neutral_evidence(row: Mapping[str, Any]) -> dict[str, Any]:
    evidence = {"code": row["code"], "status": row["status"]}
    if row.get("verifiedByToolPin") is True:
        evidence["verifier"] = "toolpin"
    for member, name in (("verificationMethod", "method"), ("trustAnchor", "anchor"), ("required", "required")):
        if member in row:
            evidence[name] = row[member]
    if is_timestamp(row.get("verifiedAt")):
        evidence["verifiedAt"] = row["verifiedAt"]
    return evidence


def _original_document(lock: Lock, remainder: Any) -> NeutralLock:
    """The document that a lock was made from, with what changed since."""
    outside, at, aside = _checked_original(remainder)
    made_of = {"generatedAt": outside.get("generatedAt", _UNKNOWN_TIME), "updatedAt": outside.get("updatedAt")}
    now = {"generatedAt": lock.generated_at, "updatedAt": lock.updated_at}
    outside |= {name: text for name, text in now.items() if text is not None and text != made_of[name]}
    entries: list[Any] = []
    for entry in lock.entries:
        neutral = _neutral_entry(entry)
        if neutral is None:
            invalid(f"/servers/{entry.key}", "cannot be expressed in mcp-lock/1, in a lock that was made from one")
        entries.append(neutral)
    for place, neutral in aside:
        entries.insert(place, neutral)
    members = list(outside.items())
    members.insert(at, ("entries", entries))
    return _checked(dict(members))


def _checked_original(remainder: Any) -> tuple[dict[str, Any], int, list[Any]]:
    found = _object(remainder)
    outside, at, aside = found.get("document"), found.get("at"), found.get("setAside", [])
    rows = isinstance(aside, list) and all(
        isinstance(row, list) and len(row) == 2 and type(row[0]) is int and isinstance(row[1], dict) for row in aside
    )
    if not isinstance(outside, dict) or type(at) is not int or not rows:
        invalid(f"/{EXTENSION}/{_NEUTRAL}", "is not what mcp-lock/1 left over")
    return dict(outside), at, aside


def _checked(document: dict[str, Any]) -> NeutralLock:
    neutral = NeutralLock(document=document)
    mcp_lock_1.check_shape(neutral)
    return neutral


# The draft to v2


def _v2_entry(neutral: Mapping[str, Any], path: str) -> Entry | None:
    carried = _own_extension(neutral).get(_V2)
    if carried is None:
        return _made_entry(neutral)
    check_v2_entry(carried, f"{path}/extensions/{NAMESPACE}/{_V2}")
    entry = Entry(key=entry_key(carried["name"], carried["client"]), document=carried)
    if _neutral_entry(entry) != neutral:
        raise PinwardenError("LOCK_TAMPERED", f"{path}: the v2 entry that it carries says something else than it does")
    return entry


def _made_entry(neutral: Mapping[str, Any]) -> Entry | None:
    """A v2 entry for a neutral one that never was v2: nothing is claimed that the draft does not say."""
    client = _CLIENT_IN_V2.get(neutral["client"])
    if client is None:
        return None
    name, version, source = neutral["name"], neutral["version"], neutral["source"]["registry"]
    plan = InstallPlan(
        name=name,
        version=version,
        client=client,
        scope="global" if neutral.get("scope") == "user" else "project",
        selected_target=_v2_target(neutral["target"]),
        trust={
            "score": 0,
            "tier": "unverified",
            "evidence": [_v2_evidence(row) for row in neutral.get("verification", [])],
            "badges": [],
            "issues": [
                {
                    "severity": "info",
                    "code": "converted",
                    "message": "Converted from mcp-lock/1, which holds neither a trust report nor a configuration.",
                }
            ],
        },
        config={},
        notes=(),
        manifest=_v2_manifest(neutral),
        source=source,
        resolved_at=neutral["resolvedAt"],
    )
    return extended(new_entry(plan, neutral["lockedAt"]), Extension(others={_NEUTRAL: neutral}))


def _v2_target(target: Mapping[str, Any]) -> dict[str, Any]:
    if target["type"] == "remote":
        return {"kind": "remote", "type": target["transport"], "url": target["url"]}
    kind = target["registryType"]
    optional = {member: target[member] for member in ("version", "transport") if member in target}
    return {
        "kind": "package",
        "registryType": _REGISTRY_IN_V2.get(kind, kind.removeprefix("dev.toolpin.")),
        "identifier": target["identifier"],
        **optional,
    }


def _v2_manifest(neutral: Mapping[str, Any]) -> dict[str, Any]:
    target = neutral["target"]
    remote = target["type"] == "remote"
    manifest: dict[str, Any] = {
        "version": 1,
        "serverName": neutral["name"],
        "serverVersion": neutral["version"],
        "registrySource": neutral["source"]["registry"],
        "packageTypes": [] if remote else [_v2_target(target)["registryType"]],
        "transports": [target["transport"]] if target.get("transport") else [],
        "remoteHosts": [target["url"].removeprefix("https://").partition("/")[0]] if remote else [],
        "secrets": [
            {"name": name, "source": "header", "required": True} for name in target.get("headerSecretNames", [])
        ],
        "generatedAt": neutral["resolvedAt"],
    }
    surface = neutral.get("surface")
    if surface is not None:
        manifest["toolSurfaceHash"] = {
            "algorithm": "sha256",
            "coverage": surface["coverage"],
            "value": _hex(surface["hash"]),
            "toolCount": surface["toolCount"],
            "generatedAt": surface.get("capturedAt", neutral["resolvedAt"]),
        }
    return manifest


def _hex(digest: str) -> str:
    from base64 import b64decode

    return b64decode(digest.removeprefix("sha256-")).hex()


def _v2_evidence(row: Mapping[str, Any]) -> dict[str, Any]:
    evidence = {"code": row["code"], "status": row["status"], "message": f"{row['code']}: {row['status']}"}
    for name, member in (("verifier", "source"), ("method", "verificationMethod")):
        if name in row:
            evidence[member] = row[name]
    for name, member in (("anchor", "trustAnchor"), ("verifiedAt", "verifiedAt"), ("required", "required")):
        if name in row:
            evidence[member] = row[name]
    return evidence


def _checked_remainder(rest: Any) -> Mapping[str, Any]:
    path = f"/extensions/{NAMESPACE}/{_V2}"
    if not isinstance(rest, dict) or not isinstance(rest.get("order"), list):
        invalid(path, "is not what v2 left over")
    kinds = {"setAside": dict, "seal": dict, "others": dict, "generatedAt": str, "updatedAt": str}
    for member, kind in kinds.items():
        if member in rest and not isinstance(rest[member], kind):
            invalid(f"{path}/{member}", "is not what v2 left over")
    return rest


def _original_lock(
    document: Mapping[str, Any], rest: Mapping[str, Any], entries: dict[str, Entry], aside: list[Any]
) -> Lock:
    """The lock that a document was made from, with what changed since."""
    if aside:
        name = aside[0][1]["name"]
        invalid(f"/entries/{aside[0][0]}", f"({name[:80]!a}) cannot be expressed in v2, in a document made from v2")
    for key, carried in _object(rest.get("setAside")).items():
        check_v2_entry(carried, f"/extensions/{NAMESPACE}/{_V2}/setAside/{key}")
        entries[key] = Entry(key=key, document=carried)
    order = [key for key in rest["order"] if isinstance(key, str) and key in entries]
    ordered = [*order, *(key for key in entries if key not in set(order))]
    return Lock(
        generated_at=document.get("generatedAt", rest.get("generatedAt", _UNKNOWN_TIME)),
        updated_at=document.get("updatedAt", rest.get("updatedAt")),
        entries=tuple(entries[key] for key in ordered),
        seal=rest.get("seal"),
        others=_object(rest.get("others")),
    )


def _own_extension(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    return _object(_object(holder.get("extensions")).get(NAMESPACE))


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
