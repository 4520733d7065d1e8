"""Count the configured servers that name no exact release of their package."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pinwarden.core.report import FindingKinds, Row, build_kind_table
from pinwarden.lock.policy_rules import apply_waivers
from pinwarden.project.floating_releases import find_floating_package
from pinwarden.system.masking import mask_name

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile
    from pinwarden.project.project import Policies, Project

_CODE = "floating_release"
_MAX_NAMES = 20

FLOATING_KINDS: FindingKinds = build_kind_table(
    review=(
        (
            _CODE,
            "Clients start servers without an exact release, so they can change at every start. A failure only with "
            "exact-releases = true in [policy.require], otherwise a warning.",
        ),
    )
)


def check_floating_releases(project: Project, files: Sequence[ConfigFile], policies: Policies) -> Iterator[Row]:
    """Report all servers without an exact release in one row. It fails if the policy requires exact releases."""
    floating: dict[str, str] = {}
    entries = 0
    for file in files:
        for server in file.servers:
            if find_floating_package(server) is not None and not _is_waived(policies, server.name):
                entries += 1
                floating.setdefault(server.name, project.display_path(file.path))
    if not floating:
        return
    required = policies.own is not None and policies.own.require_exact_releases
    names = ", ".join(map(mask_name, list(floating)[:_MAX_NAMES]))
    more = f" and {len(floating) - _MAX_NAMES} more" if len(floating) > _MAX_NAMES else ""
    use = "server uses" if len(floating) == 1 else "servers use"
    counted = f"{len(floating)} {use} a floating version" + (f" ({entries} entries)" if entries > len(floating) else "")
    how = (
        "Pin them: pinwarden pin"
        if required
        else "Pin them: pinwarden pin. To make this a failure, set exact-releases = true in [policy.require] of "
        "pinwarden.toml"
    )
    yield Row(
        code=_CODE,
        severity=FLOATING_KINDS[_CODE].severity if required else "warning",
        entity="config",
        name="",
        path="",
        message=f"{counted}: {names}{more}. {how}",
        file=next(iter(floating.values())),
    )


def _is_waived(policies: Policies, name: str) -> bool:
    if policies.own is None:
        return False
    return not apply_waivers(policies.own, name, _CODE, "", policies.today).refuses
