"""Compare a live tool list with the hashes that ToolPin keeps in a lock.

ToolPin records up to three hashes, each over all tools. Pinwarden compares ``toolSurfaceHash`` if the lock has it, and
otherwise the two older hashes, which depend on a locale. After a mismatch, the older hashes help to find out whether
descriptions or schemas changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pinwarden.core.record import Record
from pinwarden.surface.interop import TOOLPIN_COVERAGE, ToolPinHashes, compute_toolpin_hashes

PIN_FINDINGS: Mapping[str, str] = MappingProxyType(
    {
        "tools_changed": "The tools differ from those that ToolPin hashed.",
        "tool_texts_changed": "Names or descriptions of tools differ from those that ToolPin hashed.",
        "tool_schemas_changed": "Input schemas of tools differ from those that ToolPin hashed.",
        "tool_coverage_reduced": "The hash in the lock leaves out members of tools, so their changes are not detected.",
        "tool_undigestable": "A tool definition is ambiguous, so it cannot have been approved.",
        "tool_order_unknown": "ToolPin's older hashes depend on a locale; the order of these names in it is unknown.",
    }
)
"""Results of a comparison. All are drift except the last, which means that no comparison was possible."""

INCONCLUSIVE_CODE = "tool_order_unknown"


class PinFinding(Record):
    """One result of comparing a recorded hash with the live list."""

    code: str
    message: str

    @property
    def is_conclusive(self) -> bool:
        """Whether the comparison was possible."""
        return self.code != INCONCLUSIVE_CODE


def compare_tool_hashes(manifest: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> tuple[PinFinding, ...]:
    """Compare the live tools with ToolPin's hashes. Return the differences; empty if the hashes match."""
    live = compute_toolpin_hashes(tools)
    pin = manifest.get("toolSurfaceHash")
    if pin is None:
        return tuple(_compare_older_hashes(manifest, live, len(tools)))
    if sorted(pin["coverage"]) != sorted(TOOLPIN_COVERAGE):
        covered = ", ".join(pin["coverage"]) or "nothing"
        return (_build_finding("tool_coverage_reduced", f"the approved hash covers only {covered}"),)
    if _matches_pin(pin, live.tool_surface_hash.hex, len(tools)):
        return ()
    return tuple(_narrow_down_change(manifest, live, (pin["toolCount"], len(tools))))


def _compare_older_hashes(manifest: Mapping[str, Any], live: ToolPinHashes, count: int) -> Iterator[PinFinding]:
    texts, schemas = manifest.get("toolDescriptionHash"), manifest.get("toolManifestHash")
    pins = [pin for pin in (texts, schemas) if pin is not None]
    texts_same = texts is None or _matches_pin(texts, live.tool_description_hash.hex, count)
    schemas_same = schemas is None or _matches_pin(schemas, live.tool_manifest_hash.hex, count)
    if texts_same and schemas_same:
        return
    if live.locale_dependent and all(pin["toolCount"] == count for pin in pins):
        yield _build_finding(INCONCLUSIVE_CODE, "the approved hashes depend on the order of names in an unknown locale")
        return
    yield from _narrow_down_change(manifest, live, (pins[0]["toolCount"], count))


def _narrow_down_change(
    manifest: Mapping[str, Any], live: ToolPinHashes, counts: tuple[float, int]
) -> Iterator[PinFinding]:
    """Use the older hashes to find out whether descriptions or input schemas changed."""
    approved, listed = counts
    if approved != listed:
        yield _build_finding("tools_changed", f"the server lists {listed} tools, but {approved} were approved")
        return
    texts, schemas = manifest.get("toolDescriptionHash"), manifest.get("toolManifestHash")
    if live.locale_dependent or texts is None:
        yield _build_finding("tools_changed", "names, descriptions or input schemas of tools changed")
    elif not _matches_pin(texts, live.tool_description_hash.hex, listed):
        yield _build_finding("tool_texts_changed", "names or descriptions of tools changed, and maybe input schemas")
    elif schemas is None or not _matches_pin(schemas, live.tool_manifest_hash.hex, listed):
        yield _build_finding("tool_schemas_changed", "tool input schemas changed")
    else:
        yield _build_finding("tools_changed", "an empty description or schema was added or removed")


def _matches_pin(pin: Mapping[str, Any], value: str, count: int) -> bool:
    return bool(pin["value"] == value and pin["toolCount"] == count)


def _build_finding(code: str, message: str) -> PinFinding:
    return PinFinding(code=code, message=message)
