"""Evidence about the bytes of a registry's server, before anybody locks it."""

from __future__ import annotations

from pinwarden.artifacts.evidence import judge_artifact, unavailable_artifact
from pinwarden.core.errors import PinwardenError
from pinwarden.lock.launch_choice import LaunchTarget
from pinwarden.lock.server_entry import Remote
from pinwarden.lock.target_verification import ArtifactOutcome
from pinwarden.project.artifact_facts import declared_digest, declared_package, facts_of
from pinwarden.project.fetch_context import Workshop

# What keeps anybody from looking, as opposed to what is wrong with what was seen.
_NOT_LOOKED_AT = (
    "FETCH_FAILED",
    "FETCH_LIMIT",
    "ADDRESS_REFUSED",
    "PACKAGE_INVALID",
    "IMAGE_INVALID",
    "CONFIG_INVALID",
)


def artifact_outcome(
    server: str, target: LaunchTarget | None, shop: Workshop | None, now: str
) -> ArtifactOutcome | None:
    """What can be verified about the bytes of a server's target; None without a ``shop``, or without bytes."""
    if shop is None or target is None or isinstance(target, Remote):
        return None
    package = declared_package(target)
    if package is None or not (package.version or package.ecosystem in ("oci", "mcpb")):
        return None
    try:
        facts = facts_of(package, shop, now=now, server=server)
        return judge_artifact(facts, claim=declared_digest(target))
    except PinwardenError as err:
        if err.code not in _NOT_LOOKED_AT:
            raise
        return unavailable_artifact(package, "", err.message)
