"""Output schemas of the commands about surfaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from pinwarden.core.digest import TOOL_PROFILES
from pinwarden.core.errors import CODES
from pinwarden.skills.skill import SkillKind
from pinwarden.surface import surface
from pinwarden.surface.scan import scan as advisories
from tools.document_schemas import surface_body
from tools.findings_page import text_kinds
from tools.outputs.parts import ENTITIES, diff_members, output, surface_change
from tools.schema_words import (
    ANYTHING,
    BARE_SHA256,
    CODE,
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


def diff() -> Schema:
    return output("diff", exactly(diff_members()), "The changes between two surfaces.", change=surface_change())


def inspect() -> Schema:
    digests = mapping(or_null(SHA256))
    toolpin = exactly(
        {
            **dict.fromkeys(("toolDescriptionHash", "toolManifestHash", "toolSurfaceHash"), BARE_SHA256),
            "localeDependent": TRUTH,
        }
    )
    digests = exactly(
        {
            "pinwarden": exactly({"surface": or_null(SHA256)}, {kind.member: digests for kind in surface.ITEM_KINDS}),
            "api-surface": or_null(exactly({"hash": SHA256, "tools": mapping(SHA256)})),
            "hangar-1.2": digests,
            "hangar": digests,
            "toolpin": or_null(toolpin),
            "fusion": digests,
            "unavailable": array(exactly({"digest": TEXT, "item": or_null(TEXT), "reason": TEXT})),
        }
    )
    two_clients = exactly({"differs_per_client": TRUTH, "changes": array(ref("change"))})
    return output(
        "inspect",
        {"oneOf": [exactly({"surface": ref("surface"), "digests": ref("digests")}), two_clients]},
        "The surface and its digests; with --compare-client, the differences between the surfaces for two clients.",
        surface=surface_body(),
        digests=digests,
        change=surface_change(),
    )


def scan() -> Schema:
    severities = get_args(advisories.Severity)
    finding = exactly(
        {
            "server": TEXT,
            "code": one_of(text_kinds()),
            "severity": one_of(severities),
            "entity": one_of(ENTITIES),
            "name": TEXT,
            "path": TEXT,
            "message": TEXT,
            "excerpt": TEXT,
        }
    )
    scanned = exactly(
        {"server": TEXT, "state": one_of(("scanned",)), "tools": COUNT, "warnings": COUNT, "notes": COUNT}
    )
    unscanned = exactly({"server": TEXT, "state": one_of(("failed", "skipped")), "reason": TEXT})
    skill_finding = exactly(
        {"code": CODE, "severity": one_of(severities), "path": FULL_TEXT, "message": TEXT, "excerpt": TEXT}
    )
    skill = exactly(
        {
            "name": FULL_TEXT,
            "kind": one_of(get_args(SkillKind)),
            "place": FULL_TEXT,
            "findings": array(skill_finding),
            "problems": array(TEXT),
        }
    )
    body = exactly(
        {
            "findings": array(finding),
            "counts": exactly(dict.fromkeys(severities, COUNT)),
            "servers": array({"oneOf": [scanned, unscanned]}),
        },
        {"skills": array(skill)},
    )
    return output("scan", body, "Text that may try to manipulate the model.")


def digest() -> Schema:
    good = exactly({"name": TEXT, "digest": SHA256})
    bad = exactly({"name": ANYTHING, "error": exactly({"code": one_of(CODES), "message": TEXT})})
    body = exactly({"profile": one_of(TOOL_PROFILES), "tools": array({"oneOf": [good, bad]})})
    return output("digest", body, "The digest of each tool, or the reason why a tool has none.")


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "inspect": inspect,
    "scan": scan,
    "diff": diff,
    "digest": digest,
}
