"""Parse the arguments of launchers such as npx, uvx, docker, python and shells.

A launcher downloads and runs a package, or runs a script. Each parser returns a `Launch`, which says what the command
starts and which dangers it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal
from urllib.parse import quote

from pinwarden.core.record import Record, field, replace
from pinwarden.core.text import lazy_pattern
from pinwarden.system.target import is_absolute, parse_name_set, parse_options, strip_query

LaunchKind = Literal["npm", "pypi", "oci", "nuget", "jsr", "source", "url", "module", "script", "path", "shell"]

DANGERS: Mapping[str, str] = MappingProxyType(
    {
        "shell_command": "The command is a shell that runs a script from the configuration.",
        "shell_text": "An argument contains shell operators, which run other commands if the client uses a shell.",
        "download_and_run": "The command downloads code and runs it immediately, so it cannot be reviewed first.",
        "inline_code": "The configuration contains the code of the program itself.",
        "preload": "Other code is loaded into the program before it starts.",
        "other_index": "The package comes from an index that the command names.",
        "redirecting_variable": "An environment variable decides where code, packages or responses come from.",
        "temporary_path": "The program is in a temporary folder, where every user of this machine can write.",
        "container_privileges": "The container has access to the host machine.",
        "unencrypted_address": "The connection is not encrypted, so anyone on the network path can read and change it.",
        "relative_path": "The path of the program is relative, so it depends on the client's working directory.",
    }
)
"""Risks that Pinwarden reports about a command, by code."""

_LOCAL_KINDS = ("module", "script", "path", "shell", "source", "jsr")
_TEMPORARY = lazy_pattern(
    r"^(?:/private)?/(?:var/)?tmp/|^/dev/shm/|^%te?mp%|^\$\{?TE?MP|\\appdata\\local\\temp\\", re.IGNORECASE
)
_WEB = lazy_pattern(r"(?:https?|wss?)://", re.IGNORECASE)
_LOOPBACK = lazy_pattern(r"(?:http|ws)://(?:localhost|127\.0\.0\.1|\[::1\])(?:[:/?#]|$)", re.IGNORECASE)


class Launch(Record):
    """The program, package, image or address that a command starts, as far as its text shows."""

    kind: LaunchKind
    identity: str
    """Name of the package or image, the address without its query, the module or the path."""
    version: str | None = None
    """The version, range, tag (such as ``latest``) or commit, as written in the command."""
    digest: str | None = None
    pinned: bool = False
    """Whether the command names exactly one release. Images need a digest for this, repositories a commit."""
    runner: str = ""
    """The launcher, such as ``npx``, ``uvx``, ``docker`` or ``node``."""
    via: Launch | None = None
    """The package that connects to the address, such as ``mcp-remote``. Only if ``kind`` is ``url``."""
    dangers: tuple[str, ...] = ()
    """Codes of ``DANGERS``, in its order."""
    program: str | None = field(default=None, compare=False)
    """The name of the executable inside the package, if the command names it."""
    options: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The options of the container engine."""
    arguments: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The arguments of the server itself."""
    settings: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    """Options that change what the launcher installs or how it runs it, in normalised form and order.

    None if Pinwarden does not know all options of the launcher. Such commands are compared word by word.
    """
    wrappers: tuple[str, ...] = field(default=(), compare=False)
    """Programs around the launcher that change how it runs, such as ``env`` and ``sudo``."""
    wrapper_words: tuple[str, ...] | None = field(default=(), compare=False, repr=False)
    """The words of the wrappers, which come before the launcher's; None if the command does not have them so."""

    @property
    def purl(self) -> str | None:
        """The package URL (purl). Equivalent ways to write a package have the same purl."""
        if self.kind == "oci":
            name = quote(self.identity.rpartition("/")[2], safe="")
            version = f"@{quote(self.digest, safe='')}" if self.digest else ""
            tag = f"&tag={quote(self.version, safe='')}" if self.version else ""
            return f"pkg:oci/{name}{version}?repository_url={quote(self.identity, safe='/')}{tag}"
        if self.kind in ("npm", "pypi", "nuget", "jsr"):
            # PyPI ignores case, and treats underscores and dots as hyphens.
            name = re.sub(r"[-_.]+", "-", self.identity).lower() if self.kind == "pypi" else self.identity
            version = f"@{quote(self.version, safe='')}" if self.version and self.pinned else ""
            return f"pkg:{self.kind}/{quote(name, safe='/')}{version}"
        return None

    @property
    def is_local_command(self) -> bool:
        """Whether there are no bytes to verify: a script, a module, a program of this machine, or a repository."""
        return (self.via or self).kind in _LOCAL_KINDS

    def with_dangers(self, dangers: Iterable[str]) -> Launch:
        """Return a copy with these dangers added, without duplicates and in the order of ``DANGERS``."""
        codes = {*self.dangers, *dangers}
        return replace(self, dangers=tuple(code for code in DANGERS if code in codes))


def build_url_launch(url: str, runner: str) -> Launch:
    """Build the launch of a remote server."""
    plain = url.lower().startswith(("http://", "ws://")) and not _LOOPBACK.match(url)
    dangers = ("unencrypted_address",) if plain else ()
    return Launch(kind="url", identity=strip_query(url), runner=runner, dangers=dangers)


def is_address(word: str) -> bool:
    """Whether a word is a web address."""
    return bool(_WEB.match(word))


def build_script_launch(runner: str, words: Sequence[str]) -> Launch:
    """Build the launch of a script. The first word is the path or URL of the script."""
    path = words[0] if words else ""
    if is_address(path):
        launch = Launch(kind="source", identity=strip_query(path), runner=runner)
        return launch.with_dangers(["download_and_run", *build_url_launch(path, runner).dangers])
    launch = Launch(kind="script", identity=path, runner=runner)
    return launch.with_dangers(["relative_path"] if path and not is_absolute(path) else []).with_dangers(
        find_temporary_path_danger(path)
    )


def find_temporary_path_danger(path: str) -> list[str]:
    """Return ``["temporary_path"]`` if the path is in a temporary folder, and otherwise an empty list."""
    return ["temporary_path"] if _TEMPORARY.search(path) else []


_NPM_EXACT = lazy_pattern(r"v?(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")
_NPM_NAME = lazy_pattern(r"(?:@[A-Za-z0-9._~-]+/)?[A-Za-z0-9._~-]+")
_PYPI_EXACT = lazy_pattern(r"[0-9][0-9A-Za-z.!+_-]*")
_PYPI_SPEC = lazy_pattern(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*(.*)", re.DOTALL)
_NUGET_EXACT = lazy_pattern(r"\d+(?:\.\d+){1,3}(?:-[0-9A-Za-z.-]+)?")
_SOURCE = lazy_pattern(r"git\+|git:|git@|github:|gitlab:|bitbucket:|gist:|https?:|ssh:|hg\+|svn\+")
_UNENCRYPTED = lazy_pattern(r"(?:[a-z]+\+)?http://|git:")
_LOCAL = lazy_pattern(r"[./~]|file:|[A-Za-z]:[\\/]")
_COMMIT = lazy_pattern(r"[0-9a-f]{40}|[0-9a-f]{64}")

BRIDGES = frozenset({"mcp-remote", "mcp-proxy", "supergateway"})
"""Packages that only forward messages to a remote server, whose address is among their arguments."""

_NPX_VALUES = parse_name_set(
    "-p --package -c --call --registry --prefix --cache --userconfig --globalconfig -w --workspace --node-arg -n "
    "--script-shell --allow-build"
)
_NPX_LONG = {"-p": "--package", "-c": "--call", "-w": "--workspace"}
_NPX_IGNORED = parse_name_set("-y --yes -q --quiet -s --silent")
_NPM_INDEXES = ("--registry", "--userconfig", "--globalconfig")
_DENO_VALUES = parse_name_set("-c --config --import-map --lock --cert --location --seed -L --log-level --env-file")
UV_VALUES = parse_name_set(
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
_UV_IGNORED = parse_name_set("-q --quiet --no-progress")
_NUGET_VALUES = parse_name_set("--version --source --add-source --configfile --framework -v --verbosity")
_NUGET_INDEXES = ("--source", "--add-source", "--configfile")


def parse_npx(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``npx`` and its equivalents: ``bunx``, ``pnpm dlx``, ``yarn dlx``, ``npm exec``."""
    options = parse_options(words, _NPX_VALUES)
    named = options.get("-p", "--package")
    spec = named or (options.rest[0] if options.rest else "")
    arguments = options.rest if named else options.rest[1:]
    dangers = []
    # npx also accepts its own options after the package name.
    if options.has(*_NPM_INDEXES) or any(word.partition("=")[0] in _NPM_INDEXES for word in arguments):
        dangers.append("other_index")
    if options.has("-c", "--call"):
        dangers.append("inline_code")
    program = options.rest[0] if named and options.rest else None
    launch = parse_npm_spec(spec, name).with_dangers(dangers)
    settings = options.settings(_NPX_LONG, ignored=_NPX_IGNORED, first_of="--package")
    launch = replace(launch, program=program, arguments=tuple(options.rest[1:]), settings=settings)
    return _resolve_bridge(launch, arguments)


def parse_npm_spec(spec: str, runner: str) -> Launch:
    """Parse an npm package spec: a package with a version or range, a repository, or a folder."""
    if _SOURCE.match(spec):
        return _parse_source_spec(spec, runner)
    if not spec or _LOCAL.match(spec):
        return _parse_local_spec(spec, runner)
    name, _, version = spec[1:].partition("@")
    name = spec[0] + name
    if version.startswith("npm:"):  # an alias, which installs another package under this name
        return parse_npm_spec(version.removeprefix("npm:"), runner)
    if version and (_SOURCE.match(version) or _LOCAL.match(version)):
        return parse_npm_spec(version, runner)
    if not _NPM_NAME.fullmatch(name):
        return _parse_source_spec(spec, runner)  # npm reads user/repository as a GitHub repository
    pinned = bool(_NPM_EXACT.fullmatch(version))
    return Launch(kind="npm", identity=name, version=version or None, pinned=pinned, runner=runner)


def parse_npm(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``npm``, ``pnpm`` and ``yarn``, whose ``exec`` and ``dlx`` work like ``npx``."""
    options = parse_options(words, _NPX_VALUES)
    before = [word for word in words[: len(words) - len(options.rest)] if word != "--"]
    verb = options.rest[0] if options.rest else ""
    if verb in ("exec", "x", "dlx"):
        return parse_npx(f"{name} {verb}", [*before, *options.rest[1:]])
    identity = " ".join([name, *options.rest[:2]])
    return Launch(kind="script", identity=identity, runner=name, dangers=("relative_path",))


def parse_node(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``node``, ``tsx`` and ``bun``."""
    words = list(words)
    if name == "bun" and words[:1] == ["x"]:
        return parse_npx("bunx", words[1:])
    if name == "bun" and words[:1] == ["run"]:
        words = words[1:]
    preloads = ("-r", "--require", "--import", "--loader", "--experimental-loader", "--preload")
    options = parse_options(words, frozenset(preloads) | {"-C", "--conditions", "--env-file"})
    dangers = ["preload"] if options.has(*preloads) else []
    if options.has("-e", "--eval", "-p", "--print", "-pe"):
        return Launch(kind="shell", identity=name, runner=name).with_dangers(["inline_code", *dangers])
    return build_script_launch(name, options.rest).with_dangers(dangers)


def parse_deno(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``deno``."""
    if list(words[:1]) == ["eval"]:
        return Launch(kind="shell", identity=name, runner=name, dangers=("inline_code",))
    words = words[1:] if words and words[0] in ("run", "serve", "x") else words
    options = parse_options(words, _DENO_VALUES)
    source, _, spec = (options.rest[0] if options.rest else "").partition(":")
    if source == "npm":
        return _resolve_bridge(parse_npm_spec(spec.removeprefix("/"), name), options.rest[1:])
    if source == "jsr":
        return replace(parse_npm_spec(spec.removeprefix("/"), name), kind="jsr")
    return build_script_launch(name, options.rest)


def parse_uvx(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``uvx``, ``uv tool run`` and ``pipx run``."""
    options = parse_options(words, UV_VALUES)
    spec = options.get("--from", "--spec") or (options.rest[0] if options.rest else "")
    launch = parse_pypi_spec(spec, name).with_dangers(["other_index"] if options.has(*UV_INDEXES) else [])
    program = options.rest[0] if options.has("--from", "--spec") and options.rest else None
    settings = (*options.settings(_UV_LONG, ignored=_UV_IGNORED, first_of="--from"), *_list_extras_and_marker(spec))
    launch = replace(launch, program=program, arguments=tuple(options.rest[1:]), settings=settings)
    return _resolve_bridge(launch, options.rest[1:])


def parse_pypi_spec(spec: str, runner: str) -> Launch:
    """Parse the package that ``uvx`` or ``pipx`` runs: a Python requirement, a repository or a folder."""
    name, direct, source = spec.partition(" @ ")
    if direct:
        spec = source.strip()
    if _SOURCE.match(spec):
        return _parse_source_spec(spec, runner)
    requirement = _PYPI_SPEC.fullmatch(spec)
    if not requirement or _LOCAL.match(spec):
        return _parse_local_spec(spec, runner)
    name, constraint = requirement[1], requirement[3].strip()
    exact = re.fullmatch(r"(?:={2,3}|@)\s*([^,;\s]+)\s*(?:;.*)?", constraint, re.DOTALL)  # uvx accepts name@version
    version = exact[1] if exact else constraint
    pinned = bool(exact and _PYPI_EXACT.fullmatch(version))
    return Launch(kind="pypi", identity=name, version=version or None, pinned=pinned, runner=runner)


def _list_extras_and_marker(spec: str) -> Iterator[str]:
    """Yield the extras of a requirement as ``extra=NAME``, and its environment marker as ``marker=TEXT``."""
    requirement = _PYPI_SPEC.fullmatch(spec)
    if requirement is None:
        return
    extras = sorted(extra.strip().lower() for extra in (requirement[2] or "").strip("[]").split(",") if extra.strip())
    yield from (f"extra={extra}" for extra in extras)
    marker = requirement[3].partition(";")[2].strip()
    if marker:
        yield f"marker={marker}"


def parse_pipx(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``pipx``. Only ``pipx run`` starts a server."""
    if list(words[:1]) == ["run"]:
        return parse_uvx("pipx run", words[1:])
    return Launch(kind="path", identity=name, runner=name)


def parse_dnx(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``dnx`` and ``dotnet tool exec``."""
    options = parse_options(words, _NUGET_VALUES)
    later = parse_options(options.rest[1:], _NUGET_VALUES)
    package, _, version = (options.rest[0] if options.rest else "").partition("@")
    version = version or options.get("--version") or later.get("--version") or ""
    pinned = bool(_NUGET_EXACT.fullmatch(version))
    launch = Launch(kind="nuget", identity=package, version=version or None, pinned=pinned, runner=name)
    other = options.has(*_NUGET_INDEXES) or later.has(*_NUGET_INDEXES)
    return launch.with_dangers(["other_index"] if other else [])


def parse_dotnet(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``dotnet``, which starts a tool, a project or a compiled program."""
    if list(words[:2]) in (["tool", "exec"], ["tool", "execute"]):
        return parse_dnx("dotnet tool exec", words[2:])
    if list(words[:1]) == ["run"]:
        return Launch(kind="script", identity="dotnet run", runner=name, dangers=("relative_path",))
    return build_script_launch(name, words)


def _parse_local_spec(spec: str, runner: str) -> Launch:
    path = spec.removeprefix("file:")
    launch = Launch(kind="script", identity=path, runner=runner)
    return launch.with_dangers(["relative_path"] if path.startswith(".") else []).with_dangers(
        find_temporary_path_danger(path)
    )


def _parse_source_spec(spec: str, runner: str) -> Launch:
    """Parse the URL of a repository or archive. It counts as pinned only if it names a commit."""
    identity, mark, reference = spec.partition("#")
    if not mark and "@" in spec.rpartition("/")[2]:
        identity, _, reference = spec.rpartition("@")
    reference = reference.partition("&")[0]
    pinned = bool(_COMMIT.fullmatch(reference))
    dangers = ("unencrypted_address",) if _UNENCRYPTED.match(spec) else ()
    identity_without_token = re.sub(r"//[^/@]*@", "//", strip_query(identity))  # the part before @ may be a token
    return Launch(
        kind="source",
        identity=identity_without_token,
        version=reference or None,
        pinned=pinned,
        runner=runner,
        dangers=dangers,
    )


def _resolve_bridge(launch: Launch, arguments: Sequence[str]) -> Launch:
    """Return the launch of the remote server if the package is one of ``BRIDGES``; otherwise ``launch`` itself."""
    url = next((word for word in arguments if is_address(word)), None)
    if launch.identity not in BRIDGES or url is None:
        return launch
    return replace(build_url_launch(url, launch.runner), via=launch).with_dangers(launch.dangers)


_IMAGE = lazy_pattern(
    r"(?P<name>[^@]+?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]+))?"
)
_SHA256 = lazy_pattern(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_DOCKER_VALUES = parse_name_set("-H --host -c --context --config -l --log-level")
_RUN_FLAGS = parse_name_set(
    "--rm --init --privileged --detach --interactive --tty --read-only --no-healthcheck --oom-kill-disable "
    "--publish-all --sig-proxy --disable-content-trust --tls-verify --quiet --help --rmi --replace --env-host "
    "--no-hosts --http-proxy --use-api-socket"
)
_RUN_SHORT_FLAGS = frozenset("itdPq")
_RUN_LONG = {
    "-i": "--interactive",
    "-t": "--tty",
    "-d": "--detach",
    "-P": "--publish-all",
    "-q": "--quiet",
    "-e": "--env",
    "-v": "--volume",
    "-p": "--publish",
    "-u": "--user",
    "-w": "--workdir",
    "-m": "--memory",
    "-c": "--cpu-shares",
    "-l": "--label",
    "-h": "--hostname",
    "-a": "--attach",
    "--net": "--network",
}
_RUN_IGNORED = parse_name_set("--rm --interactive --quiet")
_CLUSTER = lazy_pattern(r"-[itdPq]+[^itdPq]")  # short flags joined with an option that has a value, such as -ie NAME
_HOST_PATHS = lazy_pattern(
    r"(?:^|source=|src=)(?:/|~/?|/etc|/root|/home|[A-Za-z]:[\\/]?)(?::|,|$)|(?:docker|podman|containerd)\.sock"
)
_HOST_SPACES = ("--network", "--net", "--pid", "--ipc", "--uts", "--userns")

_FETCHES = lazy_pattern(
    r"\b(?:curl|wget|iwr|irm|invoke-webrequest|invoke-restmethod|certutil|bitsadmin)\b", re.IGNORECASE
)
_RUNS = lazy_pattern(
    r"\|\s{0,99}(?:sudo\s{1,99})?(?:[^\s|]{0,200}/)?(?:sh|bash|zsh|dash|python[0-9.]*|node|perl|ruby|iex|invoke-expression)\b|"
    r"\b(?:iex|invoke-expression|eval|source)\b|<\(|\$\(|`|"
    r"(?:&&|;)\s{0,99}(?:chmod|(?:[^\s;&]{0,200}/)?(?:sh|bash|python[0-9.]*|node)\b|\./|/)",
    re.IGNORECASE,
)
_OPERATORS = lazy_pattern(r"&&|\|\||[|;`\n]|\$\(|(?:^|\s)&(?:\s|$)|(?:^|\s)(?:>>?|<<?)\s*\S")
_LONE_OPERATORS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<"})
# Shell operators followed by a command: "a; b" and "x && y" match, "text/html;q=1" and the pattern a|b do not.
_COMMAND_AFTER = lazy_pattern(r"&&|\|\||\$\([^)]|`[^`]+`|;\s{1,99}\S|\s\|\s|\n\s{0,99}\S")


def parse_docker(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``docker`` and ``podman``. Only ``run`` starts a server."""
    engine = parse_options(words, _DOCKER_VALUES)
    rest = list(engine.rest)
    if rest[:1] == ["container"]:
        rest = rest[1:]
    if rest[:1] != ["run"]:
        return Launch(kind="path", identity=" ".join([name, *rest[:2]]), runner=name)
    image, options, image_index = _split_image_and_options(rest[1:])
    is_plain = not engine.values and not any(map(_CLUSTER.match, rest[1 : 1 + image_index]))
    dangers = ["container_privileges"] if any(_has_host_access(*option) for option in options) else []
    match = _IMAGE.fullmatch(image)
    digest = match["digest"] if match else None
    return Launch(
        kind="oci",
        identity=match["name"] if match else image,
        version=match["tag"] if match else None,
        digest=digest,
        pinned=bool(digest and _SHA256.fullmatch(digest)),
        runner=name,
        options=tuple(rest[1 : 1 + image_index]),
        settings=tuple(_normalize_container_options(options)) if is_plain else None,
        arguments=tuple(rest[2 + image_index :]),
    ).with_dangers(dangers)


def parse_python(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of ``python``: ``-m module``, a file, or ``-c code``."""
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        word = words[index]
        # Python's own options end at -m and -c, which may be joined with other flags, as in -um module.
        cluster = re.fullmatch(r"-[A-Za-z]*?([mc])(.*)", word, re.DOTALL)
        if cluster and not word.startswith(("-X", "-W", "--")):
            if cluster[1] == "c":
                return Launch(kind="shell", identity=name, runner=name, dangers=("inline_code",))
            module = cluster[2] or (words[index + 1] if index + 1 < len(words) else "")
            return Launch(kind="module", identity=module, runner=name)
        index += 2 if word in ("-X", "-W") else 1
    return build_script_launch(name, words[index:])


def parse_interpreter(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of an interpreter such as Perl or Ruby, which runs a file or code in the command."""
    if any(re.fullmatch(r"-[A-Za-z]*[erE]", word) for word in words[:3]):
        return Launch(kind="shell", identity=name, runner=name, dangers=("inline_code",))
    return build_script_launch(name, [word for word in words if not word.startswith("-")])


def parse_shell(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of a shell: ``-c COMMAND``, or a script file."""
    for index, word in enumerate(words):
        if re.fullmatch(r"-[A-Za-z]*c", word):
            return build_shell_launch(name, words[index + 1] if index + 1 < len(words) else "")
        if not word.startswith("-"):
            return build_script_launch(name, words[index:])
    return build_shell_launch(name, "")


def parse_powershell(name: str, words: Sequence[str]) -> Launch:
    """Parse the arguments of PowerShell. Without ``-File``, the arguments are themselves the script."""
    for index, word in enumerate(words):
        if word.lower() in ("-file", "-f", "/file"):
            return build_script_launch(name, words[index + 1 :])
    return build_shell_launch(name, " ".join(words))


def parse_download_program(name: str, _: Sequence[str]) -> Launch:
    """Build the launch of a download program such as ``curl``, which is not itself a server."""
    return Launch(kind="path", identity=name, runner=name, dangers=("download_and_run",))


def build_shell_launch(name: str, text: str) -> Launch:
    """Build the launch of a shell that runs ``text`` as a script."""
    dangers = ["shell_command"]
    if _OPERATORS.search(text):
        dangers.append("shell_text")
    if _fetches_and_runs(text):
        dangers.append("download_and_run")
    return Launch(kind="shell", identity=name, runner=name).with_dangers(dangers)


def find_argument_dangers(words: Sequence[str]) -> list[str]:
    """Return the dangers of shell operators in the arguments, which take effect if the client uses a shell.

    URLs are skipped, because they may contain ``&``.
    """
    suspects = [word for word in words if not is_address(word)]
    if not any(word.strip() in _LONE_OPERATORS or _COMMAND_AFTER.search(word) for word in suspects):
        return []
    return ["shell_text", "download_and_run"] if _fetches_and_runs(" ".join(suspects)) else ["shell_text"]


def _fetches_and_runs(text: str) -> bool:
    return bool(_FETCHES.search(text) and _RUNS.search(text))


def _split_image_and_options(words: Sequence[str]) -> tuple[str, list[tuple[str, str]], int]:
    """Return the image, the options before it, and the index of the image among the words."""
    options: list[tuple[str, str]] = []
    index = 0
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        index += 1
        if word == "--":
            break
        name, complete, value = word.partition("=") if word.startswith("--") else _parse_short_option(word)
        if not complete and name not in _RUN_FLAGS:
            value = words[index] if index < len(words) else ""
            index += 1
        options.append((name, value))
    return (words[index] if index < len(words) else ""), options, index


def _parse_short_option(word: str) -> tuple[str, str, str]:
    """Parse joined short options such as ``-ite`` or ``-eNAME=value``.

    Returns the last option, a non-empty string if it needs no further word, and the value attached to it.
    """
    for index, letter in enumerate(word[1:], start=1):
        if letter not in _RUN_SHORT_FLAGS:
            attached = word[index + 1 :].removeprefix("=")
            return f"-{letter}", attached[:1], attached
    return word, "=", ""


def _normalize_container_options(options: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the options of ``docker run`` in normalised form and order, without those that every server needs."""
    separated = [pair for name, value in options for pair in _separate_flags(name, value)]
    # The sort is stable, so repeated options keep their order: the last one takes effect.
    for name, value in sorted(separated, key=_option_sort_key):
        if name not in _RUN_IGNORED:
            yield f"{name}={value}"


def _option_sort_key(option: tuple[str, str]) -> tuple[str, str]:
    name, value = option
    return name, value.partition("=")[0] if name == "--env" else ""


def _separate_flags(name: str, value: str) -> Iterator[tuple[str, str]]:
    if name.startswith("--") or len(name) == 2:
        yield _RUN_LONG.get(name, name), value
        return
    for letter in name[1:]:
        yield _RUN_LONG.get(f"-{letter}", f"-{letter}"), ""


def _has_host_access(name: str, value: str) -> bool:
    if name == "--privileged":
        return value != "false"
    if name in _HOST_SPACES:
        return value == "host"
    if name in ("-v", "--volume", "--mount"):
        return bool(_HOST_PATHS.search(value))
    return name in ("--cap-add", "--device") or (name == "--security-opt" and "unconfined" in value)
