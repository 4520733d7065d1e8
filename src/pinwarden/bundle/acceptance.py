"""The nine steps of the MCP verifier rulebook v0.1.1, which decide whether a bundle may be installed.

`accept` runs them in this order:

1. A trusted registry signed the pointer.
2. The channel is not legacy, or the installer allows legacy channels.
3. Descriptor and manifest parse strictly and have a canonical form.
4. Pointer, descriptor and manifest identify the same bundle.
5. The manifest's files are sorted, and every path is portable and stays inside the bundle.
6. At least one valid attestation is from a trusted key.
7. The attestations meet the registry's requirements.
8. The installer policy allows the permissions that the tool requests.
9. Accept, and record the provenance.

The hardened mode is the default. Hardened mode adds these rules, which the rulebook lacks:

- The manifest must be the one that the pointer names.
- A claim counts only if its issuer signed it, in a role that you trust.
- Signatures must cover all fields that the decision uses.
- Each signer counts once.
- Paths must be safe on every operating system.
- All documents use the one supported CID profile.

The rulebook defines no code for a member of the wrong type, and none for a pointer whose bundle is another tool.
Pinwarden reports these problems last, so that they never hide a code of the rulebook.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from operator import lt
from typing import Any, NoReturn

from pinwarden.artifacts.archives.rules import check_all_portable
from pinwarden.bundle.acceptance_request import (
    AcceptanceRequest,
    check_requirements,
    find_trusted_signers,
    find_valid_attestations,
    get_list,
    get_member,
    is_same_json,
    parse_documents,
)
from pinwarden.bundle.bundle_documents import (
    BundleDocuments,
    descriptor_from_json,
    manifest_from_json,
)
from pinwarden.bundle.document import is_supported_profile
from pinwarden.bundle.log_documents import LEGACY_PREFIX, POINTER_SIGNED_FIELDS, pointers_from_json
from pinwarden.bundle.trust import InstallerPolicy
from pinwarden.core.digest import document_cid, manifest_root_cid
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record

ACCEPT = "ACCEPT"
REJECT = "REJECT"


class Provenance(Record):
    """The accepted bundle, and the attestations that the decision is based on."""

    tool: str
    channel: str
    root_cid: str
    descriptor_cid: str
    attestations_used: tuple[str, ...]
    """The key id of each valid claim's issuer, in document order."""
    require_verifier_attestation: bool
    min_attestations: int


class Rejection(Record):
    """Why a bundle may not be installed, in the rulebook's three parts: what, why, fix."""

    code: str
    what: str
    why: Mapping[str, Any]
    fix: str


class AcceptanceResult(Record):
    """Either a provenance (accepted) or a rejection with exactly one code."""

    provenance: Provenance | None = None
    rejection: Rejection | None = None
    documents: BundleDocuments | None = None
    """The accepted descriptor and manifest; None in literal mode, which does not validate them fully."""

    def __post_init__(self) -> None:
        if (self.provenance is None) == (self.rejection is None):
            raise ValueError("exactly one of provenance and rejection must be set")

    @property
    def accepted(self) -> bool:
        """Whether the bundle may be installed."""
        return self.rejection is None


def accept(request: AcceptanceRequest) -> AcceptanceResult:
    """Run the nine steps. A rejection has the code of the first check that failed."""
    try:
        return _accept(request)
    except PinwardenError as err:
        return AcceptanceResult(rejection=rejection_from_error(err))


def _accept(request: AcceptanceRequest) -> AcceptanceResult:
    literal = request.literal
    # 1. A trusted registry signed the pointer.
    document = parse_documents({"pointer": request.pointer})["pointer"]
    _check_pointer_signature(document, request)
    pointer = _select_pointer(document, request)
    # 2. The channel is not legacy, or the installer allows legacy channels.
    _check_channel(pointer, request)
    # 3. Descriptor and manifest parse strictly and have a canonical form.
    values = parse_documents({"descriptor": request.descriptor, "manifest": request.manifest})
    descriptor, manifest = values["descriptor"], values["manifest"]
    # 4. Pointer, descriptor and manifest identify the same bundle.
    _check_linkage(pointer, descriptor, manifest, literal=literal)
    # 5. The manifest's files are sorted, and every path stays inside the bundle.
    _check_files(manifest, literal=literal)
    # 6. At least one valid attestation is from a trusted key.
    attestations = find_valid_attestations(pointer, request)
    # 7. The attestations meet the registry's requirements.
    requirements = check_requirements(pointer, attestations, literal=literal)
    # 8. The installer policy allows the requested permissions.
    check_permissions(descriptor, request.policy, literal=literal)
    documents = None if literal else _check_types_and_name(document, pointer, descriptor, manifest)
    # 9. Accept, and record the provenance.
    provenance = Provenance(
        tool=str(pointer.get("tool")),
        channel=str(pointer.get("channel")),
        root_cid=str(pointer.get("root_cid")),
        descriptor_cid=str(pointer.get("descriptor_cid")),
        attestations_used=tuple(attestation.key_id for attestation in attestations),
        require_verifier_attestation=requirements.require_verifier_attestation,
        min_attestations=requirements.min_attestations,
    )
    return AcceptanceResult(provenance=provenance, documents=documents)


def check_pointer(request: AcceptanceRequest) -> tuple[dict[str, Any], str]:
    """Run only steps 1 and 2, before a download. Returns the pointer and the id of the key that signed it."""
    document = parse_documents({"pointer": request.pointer})["pointer"]
    _check_pointer_signature(document, request)
    pointer = _select_pointer(document, request)
    _check_channel(pointer, request)
    signers = find_trusted_signers(
        document, request.trust.find_registry_key, POINTER_SIGNED_FIELDS, literal=request.literal
    )
    return pointer, signers[0].key_id


def check_documents(descriptor: bytes, manifest: bytes) -> BundleDocuments:
    """Run only steps 3 to 5, for a bundle without a pointer."""
    values = parse_documents({"descriptor": descriptor, "manifest": manifest})
    descriptor_value, manifest_value = values["descriptor"], values["manifest"]
    identity: dict[str, Any] = {
        "cid_profile": get_member(descriptor_value, "artifact", "cid_profile"),
        "root_cid": get_member(descriptor_value, "artifact", "root_cid"),
        "descriptor_cid": str(document_cid(descriptor_value)),
    }
    _check_linkage(identity, descriptor_value, manifest_value, literal=False)
    _check_files(manifest_value, literal=False)
    return build_documents(descriptor_value, manifest_value, identity["descriptor_cid"])


def build_documents(descriptor_value: Any, manifest_value: Any, descriptor_cid: str) -> BundleDocuments:
    """Build records from both JSON documents. Raises if a member has the wrong type or the entry point is missing."""
    documents = BundleDocuments(
        descriptor=descriptor_from_json(descriptor_value),
        manifest=manifest_from_json(manifest_value),
        descriptor_cid=descriptor_cid,
    )
    if all(entry.path != documents.descriptor.entry_path for entry in documents.manifest.entries):
        raise PinwardenError(
            "DOCUMENT_INVALID",
            f"tool.descriptor/entrypoint/target is not a file of the bundle: {documents.descriptor.entry_path[:120]!a}",
            data={"path": "tool.descriptor/entrypoint/target"},
        )
    return documents


def _check_types_and_name(document: Any, pointer: dict[str, Any], descriptor: Any, manifest: Any) -> BundleDocuments:
    """Check the types of all members and the name of the bundle. The rulebook defines no codes for these problems."""
    pointers_from_json(document)
    documents = build_documents(descriptor, manifest, str(pointer.get("descriptor_cid")))
    name = documents.descriptor.name
    if name != pointer["tool"]:
        raise PinwardenError(
            "TOOL_NAME_MISMATCH",
            f"the pointer is for {str(pointer['tool'])[:80]!a}, but its bundle is {name[:80]!a}",
            data={"pointer_tool": pointer["tool"], "descriptor_name": name},
        )
    return documents


# Steps 1 and 2: pointer and channel


def _check_pointer_signature(document: Any, request: AcceptanceRequest) -> None:
    if not find_trusted_signers(
        document, request.trust.find_registry_key, POINTER_SIGNED_FIELDS, literal=request.literal
    ):
        raise PinwardenError(
            "POINTER_SIGNATURE_INVALID",
            "no trusted registry signed this pointer",
            data={
                "signed_by": [
                    str(get_member(signature, "key_id"))[:80] for signature in get_list(document, "signatures")[:8]
                ],
                "trusted": [key.key_id for key in request.trust.registry_keys],
            },
        )


def _select_pointer(document: Any, request: AcceptanceRequest) -> dict[str, Any]:
    """Return the first pointer that matches the requested bundle and channel. If one is None, any matches."""
    wanted = {"tool": request.tool, "channel": request.channel}
    for pointer in get_list(document, "pointers"):
        if type(pointer) is dict and all(text in (None, pointer.get(name)) for name, text in wanted.items()):
            return pointer
    raise PinwardenError(
        "POINTER_NOT_FOUND",
        f"the registry has no pointer for {(request.tool or 'any tool')[:80]} on "
        f"{(request.channel or 'any channel')[:80]}",
        data={"tool": request.tool, "channel": request.channel},
    )


def _check_channel(pointer: dict[str, Any], request: AcceptanceRequest) -> None:
    channel = pointer.get("channel")
    if request.policy.allow_legacy or not str(channel).startswith(LEGACY_PREFIX):
        return
    raise PinwardenError(
        "LEGACY_NOT_ALLOWED",
        f"the installer policy does not allow legacy channels such as {str(channel)[:80]}",
        data={"channel": channel, "allow_legacy": False},
    )


# Step 4: linkage


def _check_linkage(pointer: Any, descriptor: Any, manifest: Any, *, literal: bool) -> None:
    """Check that pointer, descriptor and manifest identify the same bundle (rulebook, 4.1 to 4.5)."""
    _check_profile(pointer, descriptor, manifest, literal=literal)
    _check_root(pointer, descriptor)
    _check_descriptor(pointer, descriptor)
    _check_manifest(pointer, manifest, literal=literal)
    _check_manifest_link(pointer, manifest)


def _check_profile(pointer: Any, descriptor: Any, manifest: Any, *, literal: bool) -> None:
    """Check 4.1: pointer and descriptor have the same CID profile.

    In hardened mode, the manifest must have the same profile, and Pinwarden must support the profile.
    """
    stated = get_member(pointer, "cid_profile")
    profiles = {"descriptor": get_member(descriptor, "artifact", "cid_profile")}
    if not literal:
        profiles["manifest"] = get_member(manifest, "cid_profile")
    for name, profile in profiles.items():
        if not is_same_json(profile, stated):
            _refuse(
                "CID_PROFILE_MISMATCH",
                f"the pointer and the {name} name different CID profiles",
                {"pointer_cid_profile": stated, f"{name}_cid_profile": profile},
            )
    if not literal and not is_supported_profile(stated):
        _refuse("CID_PROFILE_MISMATCH", "the CID profile is not supported", {"pointer_cid_profile": stated})


def _check_root(pointer: Any, descriptor: Any) -> None:
    """Check 4.2: pointer and descriptor have the same root CID."""
    pointed, described = get_member(pointer, "root_cid"), get_member(descriptor, "artifact", "root_cid")
    if pointed != described:
        _refuse(
            "ROOT_CID_MISMATCH",
            "the pointer and the descriptor name different bundles",
            {"pointer_root_cid": pointed, "descriptor_root_cid": described},
        )


def _check_descriptor(pointer: Any, descriptor: Any) -> None:
    """Check 4.3: the descriptor has the CID that the pointer names."""
    pointed, computed = get_member(pointer, "descriptor_cid"), str(document_cid(descriptor))
    if pointed != computed:
        _refuse(
            "DESCRIPTOR_CID_MISMATCH",
            "the descriptor is not the one that the pointer names",
            {"pointer_descriptor_cid": pointed, "computed_descriptor_cid": computed},
        )


def _check_manifest(pointer: Any, manifest: Any, *, literal: bool) -> None:
    """Check 4.4: the manifest matches its own root CID. In hardened mode, it must also match the pointer's root CID."""
    stated, pointed = get_member(manifest, "root_cid"), get_member(pointer, "root_cid")
    try:
        computed = str(manifest_root_cid(manifest))
    except PinwardenError as err:
        _refuse("MANIFEST_CID_MISMATCH", f"the manifest has no root CID: {err.message}", {"manifest_root_cid": stated})
    if stated != computed:
        _refuse(
            "MANIFEST_CID_MISMATCH",
            "the manifest's root CID does not match its files",
            {"manifest_root_cid": stated, "computed_root_cid": computed},
        )
    if not literal and stated != pointed:
        _refuse(
            "MANIFEST_CID_MISMATCH",
            "the manifest belongs to another bundle than the one that the pointer names",
            {"manifest_root_cid": stated, "pointer_root_cid": pointed},
        )


def _check_manifest_link(pointer: Any, manifest: Any) -> None:
    """Check 4.5: the manifest links to the descriptor that the pointer names."""
    pointed, linked = get_member(pointer, "descriptor_cid"), get_member(manifest, "descriptor_cid")
    if pointed != linked:
        _refuse(
            "MANIFEST_DESCRIPTOR_LINK_MISMATCH",
            "the manifest belongs to another descriptor than the one that the pointer names",
            {"pointer_descriptor_cid": pointed, "manifest_descriptor_cid": linked},
        )


def _refuse(code: str, what: str, why: dict[str, Any]) -> NoReturn:
    raise PinwardenError(code, what, data=why)


# Step 5: files of the manifest


def _check_files(manifest: Any, *, literal: bool) -> None:
    """Check the order of the files first, then their paths."""
    paths = [entry.get("path") if type(entry) is dict else None for entry in get_list(manifest, "entries")]
    _check_order(paths, literal=literal)
    _check_paths(paths, literal=literal)


def _check_order(paths: list[Any], *, literal: bool) -> None:
    """Check that paths ascend by code point. Literal mode compares UTF-16 units and allows duplicates."""
    texts = [path for path in paths if type(path) is str]
    if not literal and all(map(lt, texts, texts[1:])):
        return  # fast path; the loop below finds the unsorted path for the message
    for before, after in pairwise(texts):
        in_order = _encode_utf16(before) <= _encode_utf16(after) if literal else before < after
        if not in_order:
            raise PinwardenError(
                "MANIFEST_ENTRY_ORDER_INVALID",
                f"the manifest's files are not sorted, or one is listed twice: {after[:120]!a}",
                data={"path": after, "after": before},
            )


def _encode_utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _check_paths(paths: list[Any], *, literal: bool) -> None:
    for path in paths:
        if type(path) is not str or "\\" in path:
            _refuse_path(path, "a path must be text without backslashes")
    if literal:
        return
    try:
        check_all_portable(paths)
    except PinwardenError as err:
        _refuse_path(err.data.get("path"), err.message)


def _refuse_path(path: Any, problem: str) -> NoReturn:
    raise PinwardenError(
        "MANIFEST_PATH_INVALID",
        f"the manifest lists an unsafe path: {problem[:200]}",
        data={"path": path, "reason": problem},
    )


# Step 8: permissions


def check_permissions(descriptor: Any, policy: InstallerPolicy, *, literal: bool) -> None:
    """Raise for the first requested permission that the policy does not allow: network, then file system, then exec."""
    requested = get_member(descriptor, "security", "policy")
    network, filesystem, execute = (get_member(requested, name) for name in ("network", "filesystem", "exec"))
    if _is_requested(network, literal=literal) and policy.network != "allow":
        _refuse_permission(
            "network", "requests network access, which the installer policy does not allow", network, policy.network
        )
    if not _is_filesystem_allowed(filesystem, policy.filesystem, literal=literal):
        _refuse_permission(
            "filesystem",
            "requests more file system access than the installer policy allows",
            filesystem,
            policy.filesystem,
        )
    if _is_requested(execute, literal=literal) and policy.exec != "allow":
        _refuse_permission(
            "exec", "requests to start programs, which the installer policy does not allow", execute, policy.exec
        )


def _is_requested(value: Any, *, literal: bool) -> bool:
    """Whether a permission is requested. In hardened mode, every value except ``deny`` is a request."""
    return bool(value == "allow" if literal else value != "deny")


def _is_filesystem_allowed(requested: Any, allowed: str, *, literal: bool) -> bool:
    """Whether the policy allows the requested file access. Literal mode checks only requests for ``read_write``."""
    if allowed in ("read_write", "allow"):
        return True
    if literal:
        return bool(requested != "read_write")
    return requested == "deny" or (requested == "read_only" and allowed == "read_only")


def _refuse_permission(kind: str, problem: str, requested: Any, allowed: str) -> NoReturn:
    raise PinwardenError(
        f"POLICY_BLOCKED_{kind.upper()}",
        f"the tool {problem}",
        data={f"tool_policy_{kind}": requested, f"installer_policy_{kind}": allowed},
    )


# The result as JSON


def rejection_from_error(err: PinwardenError) -> Rejection:
    """Turn the error of a failed step into a rejection; the error's data becomes ``why``."""
    return Rejection(code=err.code, what=err.message, why=dict(err.data), fix=err.hint)


def result_to_json(result: AcceptanceResult) -> dict[str, Any]:
    """Return a result as the rulebook's JSON: ``result``, and either ``error`` or ``provenance``."""
    rejection = result.rejection
    if rejection is None:
        provenance = result.provenance
        return {"result": ACCEPT, "provenance": provenance and provenance_to_json(provenance)}
    return {
        "result": REJECT,
        "error": {"code": rejection.code, "what": rejection.what, "why": dict(rejection.why), "fix": rejection.fix},
    }


def provenance_to_json(provenance: Provenance) -> dict[str, Any]:
    """Return a provenance as JSON for locks and ``.provenance.json`` files."""
    return {
        "tool": provenance.tool,
        "channel": provenance.channel,
        "root_cid": provenance.root_cid,
        "descriptor_cid": provenance.descriptor_cid,
        "attestations_used": list(provenance.attestations_used),
        "constraints_enforced": {
            "require_verifier_attestation": provenance.require_verifier_attestation,
            "min_attestations": provenance.min_attestations,
        },
    }


# The steps as a report: which passed, which one failed


PASSED, FAILED, NOT_REACHED = "passed", "failed", "not reached"
_PARSE_CODES = ("JSON_PARSE_ERROR", "JSON_CANONICALIZATION_ERROR")


class AcceptanceStep(Record):
    """One step of the rulebook, with the codes that it can fail with."""

    number: int
    check: str
    codes: tuple[str, ...]


STEPS = (
    AcceptanceStep(number=1, check="a trusted registry signed the pointer", codes=("POINTER_SIGNATURE_INVALID",)),
    AcceptanceStep(
        number=2, check="the channel is not legacy, or legacy channels are allowed", codes=("LEGACY_NOT_ALLOWED",)
    ),
    AcceptanceStep(number=3, check="descriptor and manifest are unambiguous JSON", codes=_PARSE_CODES),
    AcceptanceStep(
        number=4,
        check="pointer, descriptor and manifest identify the same bundle",
        codes=(
            "CID_PROFILE_MISMATCH",
            "ROOT_CID_MISMATCH",
            "DESCRIPTOR_CID_MISMATCH",
            "MANIFEST_CID_MISMATCH",
            "MANIFEST_DESCRIPTOR_LINK_MISMATCH",
        ),
    ),
    AcceptanceStep(
        number=5,
        check="files are sorted and every path stays inside the bundle",
        codes=("MANIFEST_ENTRY_ORDER_INVALID", "MANIFEST_PATH_INVALID"),
    ),
    AcceptanceStep(
        number=6,
        check="a key that you trust attested the bundle",
        codes=("ATTESTATION_EXPIRED", "NO_VALID_ATTESTATIONS"),
    ),
    AcceptanceStep(
        number=7,
        check="required signers and attestation count are met",
        codes=("REQUIRED_SIGNER_MISSING", "VERIFIER_ATTESTATION_REQUIRED", "INSUFFICIENT_ATTESTATIONS"),
    ),
    AcceptanceStep(
        number=8,
        check="your policy allows the requested permissions",
        codes=("POLICY_BLOCKED_NETWORK", "POLICY_BLOCKED_FILESYSTEM", "POLICY_BLOCKED_EXEC"),
    ),
)
LAST_STEP = 9
"""The number of the step that records the provenance. It is not a check, so it is not in `STEPS`."""


class CheckResult(Record):
    """The outcome of one check: a step of the rulebook by number, or an additional check (``step`` is None)."""

    step: int | None
    check: str
    result: str
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the result as an object for JSON output."""
        return {"step": self.step, "check": self.check, "result": self.result, "detail": self.detail}

    def __str__(self) -> str:
        label = "+" if self.step is None else str(self.step)
        detail = f": {self.detail}" if self.detail else ""
        return f"{label}  {self.result:11}  {self.check}{detail}"


def find_failed_step(rejection: Rejection) -> int | None:
    """Return the number of the step that failed; None for a code that the rulebook does not define."""
    if rejection.code in _PARSE_CODES and rejection.why.get("document") == "pointer":
        return 1
    if rejection.code == "POINTER_NOT_FOUND":
        return 1
    return next((step.number for step in STEPS if rejection.code in step.codes), None)


def list_step_results(
    rejection: Rejection | None, details: dict[int, str], failed_step: int | None = None
) -> list[CheckResult]:
    """Return the results of steps 1 to 8. Pass ``failed_step`` if the code of the rejection does not identify it.

    Codes that the rulebook does not define are reported after step 8, so all steps passed.
    """
    if failed_step is None and rejection is not None:
        failed_step = find_failed_step(rejection)
    results: list[CheckResult] = []
    for step in STEPS:
        if failed_step is None or step.number < failed_step:
            result = PASSED
        else:
            result = FAILED if step.number == failed_step else NOT_REACHED
        detail = details.get(step.number, "") if result == PASSED else ""
        if result == FAILED and rejection is not None:
            detail = f"{rejection.what} ({rejection.code})"
        results.append(CheckResult(step=step.number, check=step.check, result=result, detail=detail))
    return results
