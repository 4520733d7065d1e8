"""Launchers that fetch a package and run it: those of Node, Deno, Python and .NET."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pinwarden.clients.launch.values import Launched, address, in_temporary, is_address, script
from pinwarden.core.lazy_regex import pattern
from pinwarden.core.record import replace
from pinwarden.system.command_words import name_set, parse_options
from pinwarden.system.target import url_without_query

_NPM_EXACT = pattern(r"v?(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")
_NPM_NAME = pattern(r"(?:@[A-Za-z0-9._~-]+/)?[A-Za-z0-9._~-]+")
_PYPI_EXACT = pattern(r"[0-9][0-9A-Za-z.!+_-]*")
_PYPI_SPEC = pattern(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(.*)", re.DOTALL)
_NUGET_EXACT = pattern(r"\d+(?:\.\d+){1,3}(?:-[0-9A-Za-z.-]+)?")
_SOURCE = pattern(r"git\+|git:|git@|github:|gitlab:|bitbucket:|gist:|https?:|ssh:|hg\+|svn\+")
_UNENCRYPTED = pattern(r"(?:[a-z]+\+)?http://|git:")
_LOCAL = pattern(r"[./~]|file:|[A-Za-z]:[\\/]")
_COMMIT = pattern(r"[0-9a-f]{40}|[0-9a-f]{64}")

BRIDGES = frozenset({"mcp-remote", "mcp-proxy", "supergateway"})
"""Packages that only pass on to an address: that address is what answers."""

_NPX_VALUES = name_set(
    "-p --package -c --call --registry --prefix --cache --userconfig --globalconfig -w --workspace --node-arg -n "
    "--script-shell --allow-build"
)
_NPX_LONG = {"-p": "--package", "-c": "--call", "-w": "--workspace"}
_NPX_IGNORED = name_set("-y --yes -q --quiet -s --silent")
_NPM_INDEXES = ("--registry", "--userconfig", "--globalconfig")
_DENO_VALUES = name_set("-c --config --import-map --lock --cert --location --seed -L --log-level --env-file")
UV_VALUES = name_set(
    "--from --with -w --with-editable --with-requirements --index-url -i --index --default-index --extra-index-url "
    "--find-links -f -p --python --directory --project --cache-dir --config-file --refresh-package --constraints -c "
    "--overrides --resolution --prerelease --exclude-newer --env-file --python-preference --link-mode --extra --group "
    "--package -P --upgrade-package --allow-insecure-host --index-strategy --keyring-provider --color --spec "
    "--pip-args -m --module --python-platform --only-group --no-group --build-constraints -b --torch-backend"
)
UV_INDEXES = (
    "--index-url",
    "-i",
    "--index",
    "--default-index",
    "--extra-index-url",
    "--find-links",
    "-f",
    "--allow-insecure-host",
    "--config-file",
    "--pip-args",
)
_UV_LONG = {
    "--spec": "--from",
    "-w": "--with",
    "-i": "--index-url",
    "-f": "--find-links",
    "-p": "--python",
    "-c": "--constraints",
    "-b": "--build-constraints",
    "-P": "--upgrade-package",
    "-m": "--module",
}
_UV_IGNORED = name_set("-q --quiet --no-progress")
_NUGET_VALUES = name_set("--version --source --add-source --configfile --framework -v --verbosity")
_NUGET_INDEXES = ("--source", "--add-source", "--configfile")


def npx(name: str, words: Sequence[str]) -> Launched:
    """``npx``, ``bunx``, ``pnpm dlx``, ``yarn dlx``, ``npm exec``."""
    options = parse_options(words, _NPX_VALUES)
    named = options.get("-p", "--package")
    spec = named or (options.rest[0] if options.rest else "")
    arguments = options.rest if named else options.rest[1:]
    dangers = []
    # npx takes its own options after the package as well, where a person overlooks them.
    if options.has(*_NPM_INDEXES) or any(word.partition("=")[0] in _NPM_INDEXES for word in arguments):
        dangers.append("other_index")
    if options.has("-c", "--call"):
        dangers.append("inline_code")
    program = options.rest[0] if named and options.rest else None
    found = npm_package(spec, name).and_dangers(dangers)
    settings = options.settings(_NPX_LONG, ignored=_NPX_IGNORED, first_of="--package")
    found = replace(found, program=program, arguments=tuple(options.rest[1:]), settings=settings)
    return _bridged(found, arguments)


def npm_package(spec: str, runner: str) -> Launched:
    """What npm understands by one word: a package with a version or range, a repository, a folder."""
    if _SOURCE.match(spec):
        return _source(spec, runner)
    if not spec or _LOCAL.match(spec):
        return _local(spec, runner)
    name, _, version = spec[1:].partition("@")
    name = spec[0] + name
    if version.startswith("npm:"):  # an alias: another package under this name
        return npm_package(version.removeprefix("npm:"), runner)
    if version and (_SOURCE.match(version) or _LOCAL.match(version)):
        return npm_package(version, runner)
    if not _NPM_NAME.fullmatch(name):
        return _source(spec, runner)  # user/repository on GitHub
    pinned = bool(_NPM_EXACT.fullmatch(version))
    return Launched(kind="npm", identity=name, version=version or None, pinned=pinned, runner=runner)


def npm(name: str, words: Sequence[str]) -> Launched:
    """``npm``, ``pnpm`` and ``yarn``, of which some verbs are other names of ``npx``."""
    options = parse_options(words, _NPX_VALUES)
    before = [word for word in words[: len(words) - len(options.rest)] if word != "--"]
    verb = options.rest[0] if options.rest else ""
    if verb in ("exec", "x", "dlx"):
        return npx(f"{name} {verb}", [*before, *options.rest[1:]])
    identity = " ".join([name, *options.rest[:2]])
    return Launched(kind="script", identity=identity, runner=name, dangers=("relative_path",))


def node(name: str, words: Sequence[str]) -> Launched:
    """``node``, ``tsx`` and ``bun``."""
    words = list(words)
    if name == "bun" and words[:1] == ["x"]:
        return npx("bunx", words[1:])
    if name == "bun" and words[:1] == ["run"]:
        words = words[1:]
    preloads = ("-r", "--require", "--import", "--loader", "--experimental-loader", "--preload")
    options = parse_options(words, frozenset(preloads) | {"-C", "--conditions", "--env-file"})
    dangers = ["preload"] if options.has(*preloads) else []
    if options.has("-e", "--eval", "-p", "--print", "-pe"):
        return Launched(kind="shell", identity=name, runner=name).and_dangers(["inline_code", *dangers])
    return script(name, options.rest).and_dangers(dangers)


def deno(name: str, words: Sequence[str]) -> Launched:
    """``deno run``."""
    if list(words[:1]) == ["eval"]:
        return Launched(kind="shell", identity=name, runner=name, dangers=("inline_code",))
    words = words[1:] if words and words[0] in ("run", "serve", "x") else words
    options = parse_options(words, _DENO_VALUES)
    source, _, spec = (options.rest[0] if options.rest else "").partition(":")
    if source == "npm":
        return _bridged(npm_package(spec.removeprefix("/"), name), options.rest[1:])
    if source == "jsr":
        return replace(npm_package(spec.removeprefix("/"), name), kind="jsr")
    return script(name, options.rest)


def uvx(name: str, words: Sequence[str]) -> Launched:
    """``uvx``, ``uv tool run`` and ``pipx run``."""
    options = parse_options(words, UV_VALUES)
    spec = options.get("--from", "--spec") or (options.rest[0] if options.rest else "")
    found = pypi_package(spec, name).and_dangers(["other_index"] if options.has(*UV_INDEXES) else [])
    program = options.rest[0] if options.has("--from", "--spec") and options.rest else None
    settings = (*options.settings(_UV_LONG, ignored=_UV_IGNORED, first_of="--from"), *_refinements(spec))
    found = replace(found, program=program, arguments=tuple(options.rest[1:]), settings=settings)
    return _bridged(found, options.rest[1:])


def pypi_package(spec: str, runner: str) -> Launched:
    """What Python's installers understand by one word: a requirement, a repository, a folder."""
    name, direct, place = spec.partition(" @ ")
    if direct:
        spec = place.strip()
    if _SOURCE.match(spec):
        return _source(spec, runner)
    found = _PYPI_SPEC.fullmatch(spec)
    if not found or _LOCAL.match(spec):
        return _local(spec, runner)
    name, constraint = found[1], found[3].strip()
    exact = re.fullmatch(r"(?:={2,3}|@)\s*([^,;\s]+)\s*(?:;.*)?", constraint, re.DOTALL)  # uvx takes name@version too
    version = exact[1] if exact else constraint
    pinned = bool(exact and _PYPI_EXACT.fullmatch(version))
    return Launched(kind="pypi", identity=name, version=version or None, pinned=pinned, runner=runner)


def _refinements(spec: str) -> Iterator[str]:
    """What a requirement asks for beyond a name and a version: extras, and markers."""
    found = _PYPI_SPEC.fullmatch(spec)
    if found is None:
        return
    extras = sorted(extra.strip().lower() for extra in (found[2] or "").strip("[]").split(",") if extra.strip())
    yield from (f"extra={extra}" for extra in extras)
    marker = found[3].partition(";")[2].strip()
    if marker:
        yield f"marker={marker}"


def pipx(name: str, words: Sequence[str]) -> Launched:
    """``pipx run``; its other verbs start no server."""
    if list(words[:1]) == ["run"]:
        return uvx("pipx run", words[1:])
    return Launched(kind="path", identity=name, runner=name)


def dnx(name: str, words: Sequence[str]) -> Launched:
    """``dnx`` and ``dotnet tool exec``."""
    options = parse_options(words, _NUGET_VALUES)
    later = parse_options(options.rest[1:], _NUGET_VALUES)
    package, _, version = (options.rest[0] if options.rest else "").partition("@")
    version = version or options.get("--version") or later.get("--version") or ""
    pinned = bool(_NUGET_EXACT.fullmatch(version))
    found = Launched(kind="nuget", identity=package, version=version or None, pinned=pinned, runner=name)
    other = options.has(*_NUGET_INDEXES) or later.has(*_NUGET_INDEXES)
    return found.and_dangers(["other_index"] if other else [])


def dotnet(name: str, words: Sequence[str]) -> Launched:
    """``dotnet``: a tool, a project, or a built file."""
    if list(words[:2]) in (["tool", "exec"], ["tool", "execute"]):
        return dnx("dotnet tool exec", words[2:])
    if list(words[:1]) == ["run"]:
        return Launched(kind="script", identity="dotnet run", runner=name, dangers=("relative_path",))
    return script(name, words)


def _local(spec: str, runner: str) -> Launched:
    path = spec.removeprefix("file:")
    found = Launched(kind="script", identity=path, runner=runner)
    return found.and_dangers(["relative_path"] if path.startswith(".") else []).and_dangers(in_temporary(path))


def _source(spec: str, runner: str) -> Launched:
    """A repository or archive. Only a commit says which content."""
    identity, mark, reference = spec.partition("#")
    if not mark and "@" in spec.rpartition("/")[2]:
        identity, _, reference = spec.rpartition("@")
    reference = reference.partition("&")[0]
    pinned = bool(_COMMIT.fullmatch(reference))
    dangers = ("unencrypted_address",) if _UNENCRYPTED.match(spec) else ()
    shown = re.sub(r"//[^/@]*@", "//", url_without_query(identity))  # what stands before @ may be a token
    return Launched(
        kind="source", identity=shown, version=reference or None, pinned=pinned, runner=runner, dangers=dangers
    )


def _bridged(found: Launched, arguments: Sequence[str]) -> Launched:
    """The address behind a package that does nothing but connect to it."""
    url = next((word for word in arguments if is_address(word)), None)
    if found.identity not in BRIDGES or url is None:
        return found
    return replace(address(url, found.runner), via=found).and_dangers(found.dangers)
