"""Collect the surfaces of published servers: ``python -m tools.collect_surfaces LIST FOLDER [--older N]``.

LIST has one package per line, ``npm NAME [ARGUMENT ...]`` or ``pypi NAME [ARGUMENT ...]``. Each package is installed
without running its code (no install scripts, only wheels), started in the sandbox without network, and listed. A server
that asks for settings gets dummy values. FOLDER gets one JSON file per release in ``surfaces``, and a file with the
reason in ``failed``; a second run skips both. With ``--older N``, the release N versions before the newest is collected
as well, and written to ``older``. `tools/split_surfaces.py` makes data for the judgement benchmark of the files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from packaging.version import InvalidVersion, Version

from pinwarden.core.errors import PinwardenError
from pinwarden.surface.probe.probe import ProbeOptions, probe
from pinwarden.surface.surface import ITEM_KINDS, Surface
from pinwarden.system.sandbox import PROBE_SANDBOX_LIMITS, Sandbox
from pinwarden.system.target import StdioTarget

INSTALL_SECONDS = 240
PROBE_SECONDS = 40
MAX_INSTALLED_BYTES = 700_000_000
MAX_SURFACE_BYTES = 4_000_000
ATTEMPTS = 3  # starts of one server, each with the settings that the previous one asked for
_DOWNLOAD = Lock()  # one download at a time, while other servers are listed
_SETTING = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")
_GITHUB_OWNER = re.compile(r"github\.com[/:]([\w.-]+)/", re.IGNORECASE)


class CollectionError(Exception):
    """A package that cannot be installed or listed."""


@dataclass(frozen=True)
class Package:
    """A line of the list."""

    ecosystem: str
    name: str
    arguments: tuple[str, ...]

    def file_name(self, version: str) -> str:
        return f"{self.ecosystem}+{self.name.replace('/', '__')}@{version}.json"


@dataclass(frozen=True)
class InstalledPackage:
    """An installed release: how to start it, and what its metadata says."""

    version: str
    licence: str
    publisher: str
    command: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(prog="collect_surfaces", description="Collect surfaces of published servers.")
    parser.add_argument("list", type=Path, help="file with one package per line")
    parser.add_argument("folder", type=Path, help="where the surfaces go")
    parser.add_argument("--older", type=int, metavar="N", help="also collect the release N versions before the newest")
    parser.add_argument("--jobs", type=int, default=2, help="how many servers to list at once (default: 2)")
    arguments = parser.parse_args()
    for name in ("surfaces", "older", "failed"):
        (arguments.folder / name).mkdir(parents=True, exist_ok=True)
    packages = parse_list(arguments.list.read_text())
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for lines in pool.map(lambda package: collect_releases(package, arguments.folder, arguments.older), packages):
            print("\n".join(lines), flush=True)
    return 0


def parse_list(text: str) -> list[Package]:
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    packages = {tuple(words[:2]): Package(words[0], words[1], tuple(words[2:])) for words in lines if len(words) > 1}
    return [package for package in packages.values() if package.ecosystem in ("npm", "pypi")]


def collect_releases(package: Package, folder: Path, older: int | None) -> list[str]:
    """Collect the newest release and, with ``older``, an earlier one. Returns lines for the terminal."""
    return [collect(package, folder, steps) for steps in ([None] if older is None else [None, older])]


def collect(package: Package, folder: Path, older: int | None) -> str:
    """Collect one release, unless it was collected or tried before. Returns a line for the terminal."""
    target = folder / ("surfaces" if older is None else "older")
    failure = folder / "failed" / package.file_name("newest" if older is None else "older")
    newest = next((folder / "surfaces").glob(package.file_name("*")), None)
    if next(target.glob(package.file_name("*")), None) or failure.exists():
        return f"done before  {package.ecosystem} {package.name}"
    try:
        version = None
        if older is not None:
            if newest is None:
                return f"no surface   {package.ecosystem} {package.name}"
            version = choose_older_version(package, json.loads(newest.read_bytes())["version"], older)
        document = collect_release(package, version)
    except (CollectionError, subprocess.TimeoutExpired, OSError, ValueError) as err:
        failure.write_text(json.dumps({"package": package.name, "reason": str(err)[-2000:]}))
        return f"failed       {package.ecosystem} {package.name}: {str(err)[-160:]!r}"
    (target / package.file_name(document["version"])).write_text(json.dumps(document, ensure_ascii=False, indent=1))
    return f"collected    {document['id']}: {len(document['surface'].get('tools', []))} tools"


def collect_release(package: Package, version: str | None) -> dict[str, Any]:
    with TemporaryDirectory(prefix="collect-") as name:
        root = Path(name)
        install = install_npm if package.ecosystem == "npm" else install_pypi
        with _DOWNLOAD:
            installed = install(package, version, root)
        if sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) > MAX_INSTALLED_BYTES:
            raise CollectionError("the installed package is too large")
        surface = list_server((*installed.command, *package.arguments), root)
        text = json.dumps(to_listing(surface)).replace(str(root), "/server")  # some servers name their folder
        if len(text) > MAX_SURFACE_BYTES:
            raise CollectionError("the surface is too large")
    return {
        "id": f"{package.ecosystem}:{package.name}@{installed.version}",
        "ecosystem": package.ecosystem,
        "package": package.name,
        "version": installed.version,
        "licence": installed.licence,
        "source": installed.publisher,
        "surface": json.loads(text),
    }


def run(*words: str, cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        raise CollectionError(f"{words[0]} failed: {done.stderr[-1500:]}")
    return done.stdout


def install_npm(package: Package, version: str | None, root: Path) -> InstalledPackage:
    (root / "package.json").write_text('{"private": true}')
    options = ("--ignore-scripts", "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error", "--prefer-offline")
    run("npm", "install", *options, f"{package.name}@{version or 'latest'}", cwd=root)
    folder = root / "node_modules" / package.name
    manifest = json.loads((folder / "package.json").read_bytes())
    programs = manifest.get("bin") or {}
    if isinstance(programs, str):
        programs = {package.name.rpartition("/")[2]: programs}
    if not programs:
        raise CollectionError("the package has no program")
    program = programs[choose_program(list(programs), package.name)]
    repository = manifest.get("repository") or ""
    address = repository.get("url", "") if isinstance(repository, dict) else repository
    return InstalledPackage(
        version=manifest["version"],
        licence=str(manifest.get("license") or "unknown"),
        publisher=choose_publisher(f"{address}/ {manifest.get('homepage', '')}/", package.name),
        command=("node", str((folder / program).resolve())),
    )


def install_pypi(package: Package, version: str | None, root: Path) -> InstalledPackage:
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if uv is None:
        raise CollectionError("uv is not installed")
    run(uv, "venv", "-q", "--python", sys.executable, "environment", cwd=root)
    bin_folder = root / "environment" / "bin"
    requirement = f"{package.name}=={version}" if version else package.name
    install = (uv, "pip", "install", "-q", "--no-build", "--python", str(bin_folder / "python"), requirement)
    try:
        run(*install, "mcp<2", cwd=root)  # many servers do not say that they need the first version of the SDK
    except CollectionError:
        run(*install, cwd=root)
    site = next((root / "environment" / "lib").glob("python*/site-packages"))
    distribution = find_distribution(site, package.name)
    scripts = [entry.name for entry in distribution.entry_points if entry.group == "console_scripts"]
    if not scripts:
        raise CollectionError("the package has no program")
    metadata = {name: distribution.metadata.get_all(name) or [] for name in set(distribution.metadata)}
    classifiers = [line for line in metadata.get("Classifier", []) if line.startswith("License ::")]
    licences = [*metadata.get("License-Expression", []), *classifiers, *metadata.get("License", []), "unknown"]
    addresses = [*metadata.get("Project-URL", []), *metadata.get("Home-page", [])]
    return InstalledPackage(
        version=distribution.version,
        licence=licences[0].strip().partition("\n")[0][:100],
        publisher=choose_publisher(" ".join(f"{address}/" for address in addresses), package.name),
        command=(str(bin_folder / choose_program(scripts, package.name)),),
    )


def find_distribution(site: Path, name: str) -> Distribution:
    wanted = re.sub(r"[-_.]+", "-", name).lower()
    for distribution in distributions(path=[str(site)]):
        if re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower() == wanted:
            return distribution
    raise CollectionError("the package is not among the installed ones")


def choose_program(programs: list[str], package: str) -> str:
    """The program with the name of the package, or else one that says it is a server."""
    plain = package.rpartition("/")[2]
    ranked = sorted(programs, key=lambda name: (name != plain, "mcp" not in name, "server" not in name, len(name)))
    return ranked[0]


def choose_publisher(addresses: str, package: str) -> str:
    """The owner of the repository, or else the npm scope, or else the first word of the package's name."""
    owner = _GITHUB_OWNER.search(addresses)
    if owner:
        return owner[1].lower()
    scope, _, rest = package.partition("/")
    return scope.lstrip("@").lower() if rest else re.split(r"[-_.]", package.lower())[0]


def choose_older_version(package: Package, newest: str, steps: int) -> str:
    """The release some versions before ``newest``, or the oldest one; without pre-releases."""
    if package.ecosystem == "npm":
        listed = json.loads(run("npm", "view", package.name, "versions", "--json", "--loglevel=error", cwd=Path.cwd()))
        versions: list[str] = listed if isinstance(listed, list) else [listed]
    else:
        output = run(sys.executable, "-m", "pip", "index", "versions", package.name, cwd=Path.cwd())
        versions = re.findall(r"Available versions: (.*)", output)[0].split(", ")
    numbers = {parsed: text for text in versions if (parsed := parse_version(text)) is not None}
    limit = parse_version(newest)
    earlier = sorted(number for number in numbers if limit is None or number < limit)
    if not earlier:
        raise CollectionError("there is no older release")
    return numbers[earlier[-min(steps, len(earlier))]]


def parse_version(text: str) -> Version | None:
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    return None if version.is_prerelease else version


def list_server(command: tuple[str, ...], root: Path) -> Surface:
    """List the server. Each attempt has the settings that the output of the previous one named."""
    settings: dict[str, str] = {}
    options = ProbeOptions(
        allow_execute=True,
        timeout=PROBE_SECONDS,
        sandbox=Sandbox(writable=(str(root),), limits=PROBE_SANDBOX_LIMITS),
    )
    for attempt in range(ATTEMPTS):
        try:
            surface = probe(StdioTarget(command=command, env=settings, cwd=str(root)), options)
        except PinwardenError as err:
            text = f"{err.message} {err.data.get('stderr', '')}"
            asked = {name: dummy_value(name) for name in _SETTING.findall(text) if name not in settings}
            if not asked or attempt == ATTEMPTS - 1 or err.data.get("reason") == "timeout":
                raise CollectionError(text) from err
            settings.update(asked)
        else:
            if not any(surface.all_items()):
                raise CollectionError("the server lists nothing")
            return surface
    raise AssertionError("every attempt returns or raises")


def dummy_value(name: str) -> str:
    if name.endswith(("URL", "URI", "ENDPOINT", "HOST", "DOMAIN")):
        return "localhost" if name.endswith(("HOST", "DOMAIN")) else "http://localhost:9"
    return "9" if name.endswith("PORT") else "dummy"


def to_listing(surface: Surface) -> Mapping[str, Any]:
    lists = {
        kind.member: [item.value for item in surface.items_of_kind(kind) if item.digest is not None]
        for kind in ITEM_KINDS
        if kind.member in surface.items
    }
    return {**(surface.server or {}), **lists}


if __name__ == "__main__":
    sys.exit(main())
