"""Observe a bundle of a registry: accept it as ``pinwarden install`` does, without locking it.

A worker accepts bundles of registries that its trust store trusts, and that its installer policy allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pinwarden.bundle.bundle_pin import REGISTRY_TYPE
from pinwarden.bundle.trust import InstallerPolicy, parse_installer_policy
from pinwarden.bundle.trust_files import load_trust, policy_path, trust_path
from pinwarden.core.errors import PinwardenError
from pinwarden.install.bundle_download import download_bundle
from pinwarden.install.decision import InstallRequest
from pinwarden.install.registry_log import LogFollower
from pinwarden.install.sources import Locations
from pinwarden.install.staging import StagedBundle, build_bundle_pin, stage_bundle
from pinwarden.project.fetch_context import FetchContext
from pinwarden.registry.names import check_tool
from pinwarden.system.files import read_file

_MAX_POLICY_BYTES = 64 * 1024
_PUBLISHER_META = "io.modelcontextprotocol.registry/publisher-provided"


def find_bundle_spec(server: Mapping[str, Any], registry: str) -> dict[str, Any] | None:
    """Return how a bundle is observed that a registry lists; None for an entry that is not a bundle."""
    packages = server.get("packages")
    kinds = [package.get("registryType") for package in packages or () if isinstance(package, dict)]
    if REGISTRY_TYPE not in kinds:
        return None
    meta = server.get("_meta")
    provided = meta.get(_PUBLISHER_META) if isinstance(meta, dict) else None
    details = provided.get("pinwarden") if isinstance(provided, dict) else None
    named = {name: details.get(name) if isinstance(details, dict) else None for name in ("tool", "root_cid")}
    if not all(isinstance(value, str) for value in named.values()):
        raise PinwardenError("BUNDLE_INVALID", "the registry does not say which bundle it is")
    return {"bundle": named["tool"], "root_cid": named["root_cid"], "registry": registry}


def stage_listed_bundle(
    spec: Mapping[str, Any], context: FetchContext, now: str, *, allow_execute: bool
) -> StagedBundle:
    """Download, check and unpack a bundle, and read its surface. Raises POLICY_REFUSED if it is not accepted.

    Without ``allow_execute``, the surface is the one that the registry recorded.
    """
    project, settings = context.project, context.sources.settings
    trust_file = trust_path(project.home, settings.variables)
    policy_file = policy_path(trust_file)
    policy = InstallerPolicy(filesystem="read_only")  # as pinwarden install has it without a policy file
    if policy_file.exists() or policy_file.is_symlink():
        policy = parse_installer_policy(read_file(policy_file, _MAX_POLICY_BYTES))
    request = InstallRequest(
        tool=check_tool(str(spec["bundle"])), policy=policy, trusted=load_trust(trust_file), now=now
    )
    source = Locations(context.fetcher, settings).open_source(str(spec["registry"]), request.channel)
    decision = download_bundle(request, source, LogFollower(trust_file, now))
    if decision.accepted is None:
        refusal = decision.refusal
        code, why = (refusal.code, refusal.what) if refusal is not None else ("", "it was refused")
        raise PinwardenError("POLICY_REFUSED", f"the bundle was not accepted: {why}", data={"code": code})
    pin = build_bundle_pin(decision.accepted, source, None, literal=False)
    return stage_bundle(project, decision.accepted, pin, context.store, source, probe=allow_execute)
