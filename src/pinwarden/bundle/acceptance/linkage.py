"""Step 4: pointer, descriptor and manifest are about the same bundle."""

from __future__ import annotations

from typing import Any, NoReturn

from pinwarden.bundle.acceptance.values import member, same
from pinwarden.bundle.profile import is_supported
from pinwarden.core.cid import document_cid, manifest_root_cid
from pinwarden.core.errors import PinwardenError


def check_linkage(pointer: Any, descriptor: Any, manifest: Any, *, literal: bool) -> None:
    """Step 4, in its five parts."""
    _check_profile(pointer, descriptor, manifest, literal=literal)
    _check_root(pointer, descriptor)
    _check_descriptor(pointer, descriptor)
    _check_manifest(pointer, manifest, literal=literal)
    _check_link(pointer, manifest)


def _check_profile(pointer: Any, descriptor: Any, manifest: Any, *, literal: bool) -> None:
    """4.1. Hardened, the manifest's profile counts too, and only the one that is computed here."""
    stated = member(pointer, "cid_profile")
    others = {"descriptor": member(descriptor, "artifact", "cid_profile")}
    if not literal:
        others["manifest"] = member(manifest, "cid_profile")
    for name, other in others.items():
        if not same(other, stated):
            _refuse(
                "CID_PROFILE_MISMATCH",
                f"the pointer and the {name} name different CID profiles",
                {"pointer_cid_profile": stated, f"{name}_cid_profile": other},
            )
    if not literal and not is_supported(stated):
        _refuse("CID_PROFILE_MISMATCH", "the CID profile is not one that is used here", {"pointer_cid_profile": stated})


def _check_root(pointer: Any, descriptor: Any) -> None:
    """4.2."""
    pointed, described = member(pointer, "root_cid"), member(descriptor, "artifact", "root_cid")
    if pointed != described:
        _refuse(
            "ROOT_CID_MISMATCH",
            "the pointer and the descriptor name different bundles",
            {"pointer_root_cid": pointed, "descriptor_root_cid": described},
        )


def _check_descriptor(pointer: Any, descriptor: Any) -> None:
    """4.3."""
    pointed, computed = member(pointer, "descriptor_cid"), str(document_cid(descriptor))
    if pointed != computed:
        _refuse(
            "DESCRIPTOR_CID_MISMATCH",
            "the descriptor is not the one that the pointer names",
            {"pointer_descriptor_cid": pointed, "computed_descriptor_cid": computed},
        )


def _check_manifest(pointer: Any, manifest: Any, *, literal: bool) -> None:
    """4.4. To the letter a foreign manifest passes that is only true to itself; hardened, it is the pointed one."""
    stated, pointed = member(manifest, "root_cid"), member(pointer, "root_cid")
    try:
        computed = str(manifest_root_cid(manifest))
    except PinwardenError as err:
        _refuse("MANIFEST_CID_MISMATCH", f"the manifest has no root CID: {err.message}", {"manifest_root_cid": stated})
    if stated != computed:
        _refuse(
            "MANIFEST_CID_MISMATCH",
            "the manifest's files are not those that its root CID names",
            {"manifest_root_cid": stated, "computed_root_cid": computed},
        )
    if not literal and stated != pointed:
        _refuse(
            "MANIFEST_CID_MISMATCH",
            "the manifest is that of another bundle than the pointer names",
            {"manifest_root_cid": stated, "pointer_root_cid": pointed},
        )


def _check_link(pointer: Any, manifest: Any) -> None:
    """4.5."""
    pointed, linked = member(pointer, "descriptor_cid"), member(manifest, "descriptor_cid")
    if pointed != linked:
        _refuse(
            "MANIFEST_DESCRIPTOR_LINK_MISMATCH",
            "the manifest belongs to another descriptor than the pointer names",
            {"pointer_descriptor_cid": pointed, "manifest_descriptor_cid": linked},
        )


def _refuse(code: str, what: str, why: dict[str, Any]) -> NoReturn:
    raise PinwardenError(code, what, data=why)
