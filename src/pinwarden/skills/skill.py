"""A skill: the files of a folder with a ``SKILL.md``, each with its kind, and the digest of them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pinwarden.core.digest import Digest, hash_file_list
from pinwarden.core.record import Record, field
from pinwarden.skills.front_matter import read_front_matter

FileKind = Literal["prompt", "power", "code", "opaque"]
"""``prompt`` is text that the model reads, ``power`` is configuration that a client acts on, ``code`` can be run, and
``opaque`` is what a person cannot review: bytes that are not UTF-8 text."""

SkillKind = Literal["skill", "instructions"]
"""``skill`` is a folder with a ``SKILL.md``, ``instructions`` a file such as ``AGENTS.md`` with what it imports."""

MAX_FILES = 2_000
MAX_BYTES = 32 * 1024 * 1024
"""The limits of one skill: files, and bytes of all files together."""
MAIN_FILE = "SKILL.md"

_CODE_SUFFIXES = frozenset(
    [
        "bash",
        "bat",
        "c",
        "cjs",
        "cmd",
        "cpp",
        "cs",
        "fish",
        "go",
        "java",
        "js",
        "jsx",
        "kts",
        "ksh",
        "lua",
        "mjs",
        "php",
        "pl",
        "ps1",
        "psm1",
        "py",
        "pyw",
        "r",
        "rb",
        "rs",
        "scpt",
        "sh",
        "swift",
        "tcl",
        "ts",
        "tsx",
        "vbs",
        "wsf",
        "zsh",
    ]
)
_POWER_FILES = frozenset(
    (
        ".mcp.json",
        "mcp.json",
        "hooks.json",
        "gemini-extension.json",
        "settings.json",
        "settings.local.json",
        "agents/openai.yaml",
        "agents/openai.yml",
    )
)
_MANIFEST_FOLDERS = ("-plugin/plugin.json", "-plugin/marketplace.json")
_UNREADABLE_PROGRAMS: tuple[tuple[bytes, str], ...] = (
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"\xcf\xfa\xed\xfe", "a program"),
    (b"\xce\xfa\xed\xfe", "a program"),
    (b"\xca\xfe\xba\xbe", "a program"),
    (b"\x00asm", "a program"),
)
_BYTECODE_SUFFIXES = frozenset(("pyc", "pyo", "class", "so", "dll", "dylib", "exe", "wasm", "node"))


class SkillFile(Record):
    """One file of a skill."""

    path: str
    """Relative to the folder of the skill, with forward slashes."""
    digest: Digest
    size: int
    kind: FileKind
    executable: bool = False
    text: str | None = None
    """The text of the file; None if it is opaque."""
    program: str | None = field(default=None, compare=False)
    """Which kind of program an opaque file is; None for data such as images. Known only where the bytes are."""

    @property
    def is_main(self) -> bool:
        """Whether this is the ``SKILL.md`` that clients load. Some clients ignore case."""
        return self.path.rpartition("/")[2].lower() == MAIN_FILE.lower()


class Skill(Record):
    """The name of a skill and its files, sorted by path. Instructions are named by the path of their file."""

    name: str
    files: tuple[SkillFile, ...]
    kind: SkillKind = "skill"

    @property
    def noun(self) -> str:
        """What it is called in messages."""
        return "skill" if self.kind == "skill" else "instruction file"

    def locate(self, place: str, path: str) -> str:
        """Return where a file of it is, for display. The files of instructions have paths of their own."""
        return f"{place}/{path}".rstrip("/") if self.kind == "skill" or not path else path

    @property
    def digest(self) -> Digest:
        """The digest of paths, executable bits and bytes of all files."""
        return hash_file_list((file.path, file.executable, file.digest.hex) for file in self.files)

    def find_file(self, path: str) -> SkillFile | None:
        """Return the file at a path; None if the skill has none."""
        return next((file for file in self.files if file.path == path), None)


class FoundSkill(Record):
    """A skill in a folder that clients read."""

    skill: Skill
    place: str
    """The path of its folder, for display and for the lock: relative to the project, or ``~/`` for the home folder."""
    clients: tuple[str, ...]
    """The ids of the clients that read it."""
    problems: tuple[str, ...] = ()
    """Why parts of it could not be read: links, devices, names and sizes that are not allowed."""
    of_user: bool = False
    """Whether it is in a folder of the user, and not of the project."""


class FileBytes(Record):
    """A file as it was read from disk or from a bundle."""

    data: bytes
    executable: bool = False


def build_skill(folder_name: str, files: Mapping[str, FileBytes]) -> Skill:
    """Build a skill from its files, by path. Its name is the one in ``SKILL.md``, or else the name of the folder."""
    built = tuple(build_file(path, files[path]) for path in sorted(files))
    main = find_main_file(built)
    named = read_front_matter(main.text or "").name if main is not None else ""
    return Skill(name=named or folder_name, files=built)


def build_instructions(path: str, files: Mapping[str, FileBytes]) -> Skill:
    """Build the instructions at a path, from that file and the files that it imports, by path."""
    return Skill(name=path, files=tuple(build_file(one, files[one]) for one in sorted(files)), kind="instructions")


def build_file(path: str, content: FileBytes) -> SkillFile:
    """Describe one file: digest, size, kind, and its text if it is text."""
    text = _decode(content.data)
    return SkillFile(
        path=path,
        digest=Digest.of_bytes(content.data),
        size=len(content.data),
        kind=choose_kind(path, text, executable=content.executable),
        executable=content.executable,
        text=text,
        program=_describe_program(path, content.data) if text is None else None,
    )


def find_main_file(files: Iterable[SkillFile]) -> SkillFile | None:
    """Return the ``SKILL.md`` that is nearest to the root of the folder; None if there is none."""
    return min(
        (file for file in files if file.is_main), key=lambda file: (file.path.count("/"), file.path), default=None
    )


def choose_kind(path: str, text: str | None, *, executable: bool) -> FileKind:
    """Return the kind of a file. ``text`` is None for bytes that are not UTF-8 text."""
    name = path.lower()
    if text is None:
        return "opaque"
    if is_power_file(name):
        return "power"
    if executable or text.startswith("#!") or get_suffix(name) in _CODE_SUFFIXES:
        return "code"
    return "prompt"


def is_power_file(path: str) -> bool:
    """Whether a client acts on this file of a skill: hooks, servers, or the manifest of a plugin."""
    path = path.lower()
    name = path.rpartition("/")[2]
    in_agents = path.endswith(("agents/openai.yaml", "agents/openai.yml"))
    return name in _POWER_FILES or in_agents or is_plugin_manifest(path)


def is_plugin_manifest(path: str) -> bool:
    """Whether this file makes a folder a plugin, with hooks and servers of its own."""
    path = path.lower()
    return path.endswith((*_MANIFEST_FOLDERS, "gemini-extension.json"))


def _describe_program(path: str, data: bytes) -> str | None:
    """Say which kind of program an opaque file is; None for data such as images."""
    suffix = get_suffix(path.lower())
    if suffix in ("pyc", "pyo", "class"):
        return "bytecode"
    known = next((what for magic, what in _UNREADABLE_PROGRAMS if data.startswith(magic)), None)
    return known or ("a program" if suffix in _BYTECODE_SUFFIXES else None)


def get_suffix(path: str) -> str:
    """Return the part of a file's name after its last period; empty without one."""
    return path.rpartition("/")[2].rpartition(".")[2] if "." in path.rpartition("/")[2] else ""


def _decode(data: bytes) -> str | None:
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
