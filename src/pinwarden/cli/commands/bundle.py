"""``bundle``: pack, check and transfer bundles."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.bundle_arguments import (
    add_attestation_argument,
    add_bundle_arguments,
    get_bundle_files,
    open_oci_network,
)
from pinwarden.cli.commands import command
from pinwarden.cli.fetch_arguments import add_network_arguments
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from pinwarden.bundle.oci_transfer import AcceptanceOptions
    from pinwarden.bundle.pack import AddedPackages
    from pinwarden.bundle.server_manifest import ServerManifest
    from pinwarden.bundle.source_tree import SourceTree

_ARCHIVES = ("car", "tar+zstd")
_PERMISSIONS = {
    "network": ("deny", "allow"),
    "filesystem": ("deny", "read_only", "read_write"),
    "exec": ("deny", "allow"),
}
_POLICY_HELP = "installer policy: the permissions that a bundle may request"
_TRUST_HELP = "file with trusted keys and their roles"


def _configure_bundle_pack(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="DIR", help="the server's folder, with its server.json, or a folder of skills"
    )
    parser.add_argument(
        "--skills",
        metavar="NAME",
        help="pack a skill, or a folder of several, as a bundle with this name; needs --version",
    )
    parser.add_argument("--version", metavar="VERSION", help="version of a bundle of skills")
    parser.add_argument(
        "--output", "-o", default=".", metavar="DIR", help="folder for the three files (default: current folder)"
    )
    parser.add_argument("--archive", default="car", choices=_ARCHIVES, help="archive format (default: car)")
    parser.add_argument(
        "--compress", action="store_true", help="with tar+zstd: compress; the bytes then depend on the zstd version"
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="GLOB",
        help="leave out these paths, such as 'docs/**', or names, such as '*.map'; repeatable",
    )
    parser.add_argument(
        "--without-packages",
        action="store_true",
        help="do not download the dependencies that pyproject.toml states",
    )
    for name, values in _PERMISSIONS.items():
        parser.add_argument(f"--{name}", choices=values, help=f"{name} permission to request (default: deny)")
    group = parser.add_argument_group("downloading")
    group.add_argument("--offline", action="store_true", help="use only files that are already on this machine")
    add_network_arguments(group)
    add_format_argument(parser)


@command(_configure_bundle_pack)
def bundle_pack(args: Namespace) -> int:
    """Pack a server's folder into a bundle: NAME-VERSION.car, with .manifest.json and .descriptor.json next to it.

    The folder needs a server.json with name, version, runtime and entry; description, author, license, display_name and
    security.policy are optional. With --skills it has a SKILL.md instead, or folders that have one. The same folder
    gives the same bytes on every machine: the archive has no times, owners or links.

    The packages that a server needs are packed with it. For Python they are those that pyproject.toml states: wheels
    for the "platforms" and "python" versions in server.json, downloaded from your package index and verified. For Node
    they are those in node_modules, without development packages. No code of a package is run.

    Examples:
      pinwarden bundle pack notes --output dist
      pinwarden bundle pack notes --output dist --exclude 'tests/**'
      pinwarden bundle pack .claude/skills/pdf --skills acme.pdf --version 1.0.0
    """
    from pinwarden.bundle.bundle_documents import CAR_MEDIA_TYPE, TAR_ZSTD_MEDIA_TYPE
    from pinwarden.bundle.pack import PackOptions, SkillsIdentity, pack
    from pinwarden.registry.names import check_version

    if args.compress and args.archive == "car":
        raise PinwardenError("USAGE", "a CAR archive cannot be compressed", hint="Add --archive tar+zstd.")
    if bool(args.skills) != bool(args.version):
        raise PinwardenError("USAGE", "--skills and --version are used together", hint="A server's are in server.json.")
    folder = Path(args.folder)
    options = PackOptions(
        folder=folder,
        output=Path(args.output),
        media_type=CAR_MEDIA_TYPE if args.archive == "car" else TAR_ZSTD_MEDIA_TYPE,
        permissions={name: getattr(args, name) for name in _PERMISSIONS if getattr(args, name) is not None},
        compress=args.compress,
        skills=SkillsIdentity(name=args.skills, version=check_version(args.version)) if args.skills else None,
        exclude=tuple(args.exclude),
        add_packages=lambda server, tree: _collect_packages(args, folder, server, tree),
    )
    return emit(pack(options), args.format)


def _collect_packages(args: Namespace, folder: Path, server: ServerManifest, tree: SourceTree) -> AddedPackages | None:
    """Collect the packages of a Python project. The network is used only if the project states dependencies."""
    from pinwarden.cli.fetch_arguments import open_fetch_context, read_network_options
    from pinwarden.cli.project_arguments import find_current_project
    from pinwarden.project.bundle_packages import collect_packages

    if args.without_packages or server.runtime != "python":
        return None
    project = find_current_project(folder)
    with open_fetch_context(read_network_options(args), project, "downloading packages") as context:
        return collect_packages(folder, server, tree, context)


def _configure_bundle(parser: ArgumentParser) -> None:
    add_bundle_arguments(parser)
    add_format_argument(parser)


@command(_configure_bundle)
def bundle_inspect(args: Namespace) -> int:
    """Show what a bundle's documents say: its files, the command that starts it, and the permissions it requests.

    The archive is not opened; use pinwarden bundle verify to check it.

    Examples:
      pinwarden bundle inspect acme.notes-1.0.0.car
    """
    from pinwarden.bundle.bundle_files import inspect_bundle

    return emit(inspect_bundle(get_bundle_files(args)), args.format)


@command(_configure_bundle)
def bundle_verify(args: Namespace) -> int:
    """Check every byte of a bundle: descriptor, manifest and archive match, and each file has its declared CID.

    Nothing is written. Whether anyone you trust attested the bundle is a separate question: see pinwarden bundle
    accept.

    Examples:
      pinwarden bundle verify acme.notes-1.0.0.car
    """
    from pinwarden.bundle.bundle_files import verify_bundle

    return emit(verify_bundle(get_bundle_files(args)), args.format)


def _configure_bundle_accept(parser: ArgumentParser) -> None:
    parser.add_argument("--pointer", required=True, metavar="FILE", help="the registry's signed pointer to the bundle")
    parser.add_argument("--descriptor", required=True, metavar="FILE", help="the bundle's descriptor")
    parser.add_argument("--manifest", required=True, metavar="FILE", help="the bundle's manifest")
    add_attestation_argument(parser)
    parser.add_argument("--policy", required=True, metavar="FILE", help=_POLICY_HELP)
    parser.add_argument("--trust", required=True, metavar="FILE", help=_TRUST_HELP)
    parser.add_argument("--now", metavar="TIME", help="time to check expiry against (default: now)")
    parser.add_argument("--tool", metavar="NAME", help="requested tool (default: from the first pointer)")
    parser.add_argument("--channel", metavar="NAME", help="requested channel (default: from the first pointer)")
    parser.add_argument(
        "--literal",
        action="store_true",
        help="apply only the verifier rulebook v0.1.1, without Pinwarden's stricter checks",
    )
    add_format_argument(parser)


@command(_configure_bundle_accept)
def bundle_accept(args: Namespace) -> int:
    r"""Check whether a bundle would be accepted for installation, from its documents alone: no registry, no network.

    Goes through the nine steps of the acceptance rules in order and stops at the first that fails. --policy has the
    form {"network": "deny", "filesystem": "read_only", "exec": "deny", "allow_legacy": false}, and --trust the form
    {"trusted_registry_keys": [...], "known_keys": [...]}.

    Examples:
      pinwarden bundle accept --pointer pointer.json --policy policy.json --trust trust.json \
        --descriptor acme.notes-1.0.0.car.descriptor.json --manifest acme.notes-1.0.0.car.manifest.json \
        --attestation notes.attestation.json
    """
    from pinwarden.bundle.bundle_files import AcceptanceFiles, accept_files
    from pinwarden.system.clock import wall_clock

    files = AcceptanceFiles(
        pointer=Path(args.pointer),
        descriptor=Path(args.descriptor),
        manifest=Path(args.manifest),
        attestations=tuple(Path(name) for name in args.attestation),
        policy=Path(args.policy),
        trust=Path(args.trust),
    )
    time = wall_clock() if args.now is None else args.now
    report = accept_files(files, time, tool=args.tool, channel=args.channel, literal=args.literal)
    return emit(report, args.format)


def _configure_bundle_push(parser: ArgumentParser) -> None:
    add_bundle_arguments(parser)
    parser.add_argument("reference", metavar="REFERENCE", help="destination: host/name:tag")
    add_attestation_argument(parser)
    parser.add_argument("--pointer", metavar="FILE", help="a bundle registry's signed pointer to the bundle")
    add_format_argument(parser)


@command(_configure_bundle_push)
def bundle_push(args: Namespace) -> int:
    """Upload a bundle with its attestations to any OCI registry.

    Every byte is checked before the upload. The login of docker or podman is used. Prints the digest by which exactly
    this bundle can be pulled.

    Examples:
      pinwarden bundle push acme.notes-1.0.0.car registry.example.org/acme/notes:1.0.0
    """
    from pinwarden.bundle.oci_transfer import push_bundle

    attestations = [Path(name) for name in args.attestation]
    pointer = Path(args.pointer) if args.pointer else None
    with open_oci_network() as net:
        report = push_bundle(get_bundle_files(args), attestations, pointer, args.reference, net)
    return emit(report, args.format)


def _configure_bundle_pull(parser: ArgumentParser) -> None:
    parser.add_argument("reference", metavar="REFERENCE", help="host/name:tag, or host/name@digest for exact bytes")
    parser.add_argument(
        "--output", "-o", default=".", metavar="DIR", help="folder for the files (default: current folder)"
    )
    parser.add_argument("--policy", metavar="FILE", help=_POLICY_HELP)
    parser.add_argument("--trust", metavar="FILE", help=_TRUST_HELP)
    parser.add_argument("--tool", metavar="NAME", help="requested tool (default: from the first pointer)")
    parser.add_argument("--channel", metavar="NAME", help="requested channel (default: from the first pointer)")
    parser.add_argument("--unpack", metavar="DIR", help="new folder to unpack an accepted bundle into")
    add_format_argument(parser)


@command(_configure_bundle_pull)
def bundle_pull(args: Namespace) -> int:
    """Download a bundle from an OCI registry.

    Every byte is checked before anything is written. With --policy and --trust, the bundle also has to pass the checks
    of pinwarden bundle accept, with the pointer and attestations that were pushed with it; if it does not, nothing is
    written.

    Examples:
      pinwarden bundle pull registry.example.org/acme/notes:1.0.0 --output pulled
    """
    from pinwarden.bundle.oci_transfer import PullOptions, pull_bundle

    options = PullOptions(
        reference=args.reference,
        output=Path(args.output),
        acceptance=_build_acceptance_rules(args),
        unpack_to=Path(args.unpack) if args.unpack else None,
    )
    with open_oci_network() as net:
        report = pull_bundle(options, net)
    return emit(report, args.format)


def _build_acceptance_rules(args: Namespace) -> AcceptanceOptions | None:
    if args.policy is None and args.trust is None and args.tool is None and args.channel is None:
        return None
    if args.policy is None or args.trust is None:
        raise PinwardenError("USAGE", "--policy and --trust have to be used together")
    from pinwarden.bundle import trust
    from pinwarden.bundle.oci_transfer import AcceptanceOptions
    from pinwarden.system.clock import wall_clock
    from pinwarden.system.files import read_file

    return AcceptanceOptions(
        policy=trust.parse_installer_policy(read_file(Path(args.policy))),
        trust=trust.parse_trust(read_file(Path(args.trust))),
        now=wall_clock(),
        tool=args.tool,
        channel=args.channel,
    )
