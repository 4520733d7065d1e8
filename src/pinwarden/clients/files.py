"""Find, read and edit the configuration files of MCP clients on this machine.

Finding files never raises: a file that cannot be read or parsed becomes a ``ConfigFile`` with a problem. An edit
changes the entry of exactly one server, or raises and changes nothing. ``documents.py`` edits the text.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pinwarden.clients.documents import (
    build_config,
    delete_entry,
    detect_format,
    find_entry,
    read_document,
    replace_string,
    set_entry,
    set_entry_at,
)
from pinwarden.clients.table import (
    CLIENTS,
    FOLDERS,
    Client,
    ConfigLocation,
    FileScope,
    System,
    find_installation_location,
    get_client,
)
from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import fold_file_name
from pinwarden.system.files import read_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer

MAX_CONFIG_BYTES = 16 * 1024 * 1024
"""Large enough for Claude Code, which keeps its history in the same file as its servers."""

MAX_FILES_PER_LOCATION = 200  # in practice, a folder of configuration files has fewer than ten
MAX_FOLDERS = 500  # folders searched for agents
MAX_AGENTS = 2000  # in practice, a shared collection of agents has hundreds

Action = Literal["created", "updated", "unchanged", "removed", "missing"]


def detect_system() -> System:
    """Return the name of this operating system, as used in the table of clients."""
    return "windows" if sys.platform == "win32" else "mac" if sys.platform == "darwin" else "linux"


def discover_configs(
    project: Path, home: Path, system: System, env: Mapping[str, str], *, root: Path = Path("/")
) -> list[ConfigFile]:
    """Read every configuration file that exists for this project and user, in the order of the table of clients.

    A file that several clients read is returned once, for the first of them. ``root`` is the root of the file system;
    files that an administrator manages are below it.
    """
    return _discover_in(_FolderResolver(project, home, system, env, root), get_args(FileScope))


def discover_in_scope(
    project: Path, home: Path, system: System, env: Mapping[str, str], scope: FileScope
) -> list[ConfigFile]:
    """Read every existing configuration file of one scope."""
    return _discover_in(_FolderResolver(project, home, system, env, Path("/")), (scope,))


def discover_project_configs(project: Path, system: System) -> list[ConfigFile]:
    """Read every configuration file in a project's folder, but none of the user's own files."""
    return _discover_in(_FolderResolver(project, project, system, {}, Path("/")), ("project",))


def _discover_in(folders: _FolderResolver, scopes: Container[FileScope]) -> list[ConfigFile]:
    files: dict[Path, ConfigFile] = {}
    listed: dict[Path, list[str]] = {}
    project, home = folders.known["project"], folders.known["home"]
    for client in CLIENTS.values():
        for location in client.locations:
            if folders.system not in location.systems or location.scope not in scopes:
                continue
            pattern = folders.resolve_path(location.path)
            for written in _list_case_variants(pattern, project, listed) if location.scope == "project" else (pattern,):
                for path, problem in _expand_pattern(written):
                    known = path.absolute()  # the project and the home folder may be the same folder
                    if problem is not None:
                        files[known] = _build_search_problem(path, client, location, problem)
                    elif known not in files and _path_exists(path):
                        files[known] = load_config(path, client, location, within=(project, home))
    return list(files.values())


def list_project_names() -> frozenset[str]:
    """Return the top-level names in a project that belong to clients, such as ``.mcp.json`` and ``.cursor``."""
    paths = (
        Path(location.path).parts
        for client in CLIENTS.values()
        for location in client.locations
        if location.scope == "project"
    )
    return frozenset(parts[1] for parts in paths)


def load_config(path: Path, client: Client, location: ConfigLocation, *, within: tuple[Path, ...] = ()) -> ConfigFile:
    """Read one configuration file. Never raises: the result describes a file that could not be read."""
    from pinwarden.clients.config import ConfigFile, read_config  # most projects have no such file

    link = _find_link_target(path, within)
    if location.code:
        return ConfigFile(client=client.id, scope=location.scope, path=str(path), link=link, settings=True, code=True)
    try:
        data = read_file(path, MAX_CONFIG_BYTES)
    except PinwardenError as err:
        return ConfigFile(
            client=client.id,
            scope=location.scope,
            path=str(path),
            fault="unreadable",
            problem=err.message.removeprefix(f"{path}").lstrip(": "),
            link=link,
            settings=location.settings,
        )
    return read_config(data, client=client, location=location, path=str(path), link=link)


def list_installation_paths(
    project: Path, home: Path, system: System, env: Mapping[str, str]
) -> dict[tuple[str, str], str]:
    """Return the files to which Pinwarden installs servers, by client and scope."""
    folders = _FolderResolver(project, home, system, env, Path("/"))
    paths: dict[tuple[str, str], str] = {}
    for client in CLIENTS.values():
        for scope in ("project", "global"):
            location = find_installation_location(client, scope)
            if location is not None:
                paths[client.id, scope] = str(folders.resolve_path(location.path))
    return paths


def resolve_folder(path: str, project: Path, home: Path, system: System, env: Mapping[str, str]) -> Path:
    """Return a path of the tables of clients, which begins with the name of a folder in braces."""
    return _FolderResolver(project, home, system, env, Path("/")).resolve_path(path)


def read_client_file(path: Path, client: str) -> bytes | None:
    """Read a client's file that is to be edited; None if there is none. Raises CONFIG_UNEDITABLE if it is a link."""
    _refuse_linked_folder(path, get_client(client))
    return _read_or_none(path)


def put_entry(data: bytes | None, path: Path, client: str, name: str, fragment: Any) -> bytes:
    """Return the bytes of a client's file with a server added or replaced. Everything else is left unchanged.

    ``fragment`` is a client configuration that contains only this server, as a lock stores it. Writes nothing.
    """
    known = get_client(client)
    if type(find_entry(fragment, known, name)) is not dict or not name:
        raise PinwardenError("CONFIG_UNEDITABLE", f"the fragment does not contain the server {name[:80]!a}")
    return set_entry(data or b"", form=detect_format(path.name), client=known, name=name, fragment=fragment)


def remove_entry(data: bytes | None, path: Path, client: str, name: str) -> bytes | None:
    """Return the bytes of a client's file without a server. Everything else is left unchanged. Writes nothing."""
    known = get_client(client)
    if data is None or find_entry(read_document(data, path.name), known, name) is None:
        return data
    return delete_entry(data, form=detect_format(path.name), client=known, name=name)


class ConfigEdits:
    """Collects edits of configuration files, so that they can be shown and backed up before they are made."""

    def __init__(self) -> None:
        self.collected: list[tuple[ConfiguredServer, dict[str, Any]]] = []

    def replace_entry(self, server: ConfiguredServer, entry: dict[str, Any]) -> None:
        """Remember the new entry of a server. Raises CONFIG_UNEDITABLE if it cannot be written into its file."""
        data = read_server_file(server)
        if edit_entry(data, server, entry) != data:
            self.collected.append((server, entry))


def refuse_uneditable(server: ConfiguredServer, entry: dict[str, Any]) -> None:
    """Raise ``CONFIG_UNEDITABLE`` if the entry of a server cannot be replaced in its file. Writes nothing."""
    edit_entry(read_server_file(server), server, entry)


def read_server_file(server: ConfiguredServer) -> bytes:
    """Read the file of a server that is to be edited. Raises CONFIG_UNEDITABLE if the file must not be edited."""
    path = Path(server.path)
    _refuse_linked_folder(path, get_client(server.client))
    data = _read_or_none(path)
    if data is None:
        raise PinwardenError("CONFIG_UNEDITABLE", f"{path} no longer contains the server {server.name[:80]!a}")
    return data


def edit_entry(data: bytes, server: ConfiguredServer, entry: dict[str, Any]) -> bytes:
    """Return the bytes of a server's file with its entry replaced. Writes nothing."""
    from pinwarden.core.json_values import split_pointer

    path, known, name = Path(server.path), get_client(server.client), server.name
    steps = tuple(split_pointer(server.pointer))
    if not steps:
        raise PinwardenError("CONFIG_UNEDITABLE", f"{path} is itself the entry of one server; edit it by hand")
    if path.suffix.lower() == ".md":
        raise PinwardenError("CONFIG_UNEDITABLE", f"{path} describes an agent in Markdown; edit it by hand")
    form = detect_format(path.name)
    usual = steps == (*known.root, name) or (known.entry_format.named_list and steps[:-1] == known.root)
    if not usual:
        return set_entry_at(data, form=form, steps=steps, entry=entry)
    fragment = build_config(known, name, entry)
    return set_entry(data, form=form, client=known, name=name, fragment=fragment)


def edit_word(data: bytes, server: ConfiguredServer, entry: dict[str, Any], old: str, new: str) -> bytes:
    """Return the bytes of a server's file with ``old`` replaced by ``new``, which makes its entry equal ``entry``."""
    from pinwarden.core.json_values import split_pointer

    form, steps = detect_format(server.path), tuple(split_pointer(server.pointer))
    edited = None
    if form != "json" and steps and not server.path.lower().endswith(".md"):
        edited = replace_string(data, (old, new), form=form, steps=steps, entry=entry)
    return edit_entry(data, server, entry) if edited is None else edited


def _read_or_none(path: Path) -> bytes | None:
    _refuse_link(path)
    if not _path_exists(path):
        return None
    return read_file(path, MAX_CONFIG_BYTES)


def write_if_unchanged(path: Path, before: bytes | None, after: bytes | None) -> None:
    """Write a client's file, or remove it if ``after`` is None, unless it changed since it was read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent} cannot be created: {err.strerror or err}") from err
    # The client may have changed the file since Pinwarden read it, and that change must not be lost.
    if _read_or_none(path) != before:
        raise PinwardenError("CONFIG_CHANGED", f"another program changed {path} in the meantime")
    if after is not None:
        write_atomically(path, after)
        return
    try:
        path.unlink()
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path} cannot be removed: {err.strerror or err}") from err


def _refuse_link(path: Path) -> None:
    """Refuse a symbolic link, which a repository could use to make Pinwarden write to a file elsewhere."""
    if path.is_symlink():
        raise PinwardenError(
            "CONFIG_UNEDITABLE",
            f"{path} is a symbolic link",
            hint="Edit the target of the link, or remove the link.",
        )


def _refuse_linked_folder(path: Path, client: Client) -> None:
    """Refuse a file whose parent folder inside the project or home, such as ``.cursor``, is a symbolic link."""
    for location in client.locations:
        for below in _list_relative_parts(location) if location.installs else ():
            if path.parts[-len(below) :] == below:
                for folder in path.parents[: len(below) - 1]:
                    _refuse_link(folder)


def _list_relative_parts(location: ConfigLocation) -> Iterator[tuple[str, ...]]:
    """Yield the segments of a file's path relative to the project or home folder, for each system."""
    name, _, rest = location.path.partition("/")
    if name in ("{project}", "{home}"):
        yield Path(rest).parts
        return
    yield Path(rest).parts  # relative to the folder that an environment variable names
    for otherwise in FOLDERS[name.strip("{}")].otherwise.values():
        yield (*Path(otherwise.partition("/")[2]).parts, *Path(rest).parts)


class _FolderResolver:
    """Resolves paths of the table of clients, which begin with the name of a folder in braces."""

    def __init__(self, project: Path, home: Path, system: System, env: Mapping[str, str], root: Path) -> None:
        self.system = system
        self.env = env
        self.known = {"project": project, "home": home, "root": root}

    def resolve_path(self, path: str) -> Path:
        name, rest = re.fullmatch(r"\{(\w+)\}/?(.*)", path).groups()  # type: ignore[union-attr]  # all paths match
        return self._find_folder(name) / rest if rest else self._find_folder(name)

    def _find_folder(self, name: str) -> Path:
        if name in self.known:
            return self.known[name]
        folder = FOLDERS[name]
        value = self.env.get(folder.variable, "") if folder.variable and self.system in folder.variable_on else ""
        # A relative path is ignored: Pinwarden and the client may have different working directories.
        if value and Path(value).is_absolute():
            return Path(value)
        return self.resolve_path(folder.otherwise[self.system])


def _expand_pattern(pattern: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield the files that match a pattern. If not all were found, also yield the pattern itself with the problem."""
    index = next((index for index, step in enumerate(pattern.parts) if step.startswith("*")), None)
    if index is None:
        yield pattern, None
        return
    folder, rest = Path(*pattern.parts[:index]), pattern.parts[index + 1 :]
    if pattern.parts[index] == "**":
        below, problem = _list_folders(folder)
        for subfolder in below:
            yield from _expand_pattern(Path(subfolder, *rest))
        if problem is not None:
            yield pattern, problem
        return
    names, problem = _list_names(folder, pattern.parts[index])
    for name in names:
        yield from _expand_pattern(Path(folder, name, *rest))
    if problem is not None:
        yield pattern, problem


def _list_folders(folder: Path) -> tuple[list[Path], str | None]:
    """List a folder and all folders below it, also through links. The second result says why some are missing."""
    pending, folders, visited = [folder], list[Path](), set[tuple[int, int]]()
    while pending:
        current = pending.pop()
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in visited or not current.is_dir():
                continue
            visited.add((status.st_dev, status.st_ino))
            if len(folders) == MAX_FOLDERS:
                return folders, f"there are more than {MAX_FOLDERS} folders, and Pinwarden read {MAX_FOLDERS} of them"
            folders.append(current)
            pending += sorted((child for child in current.iterdir() if child.is_dir()), reverse=True)
        except FileNotFoundError:
            continue
        except OSError as err:
            return folders, f"the folder {current.name!a} cannot be listed: {err.strerror or err}"
    return folders, None


def _list_names(folder: Path, pattern: str) -> tuple[list[str], str | None]:
    """List the names in a folder with the suffix of the pattern. The second result says why some are missing."""
    ending = fold_file_name(pattern.removeprefix("*"))
    try:
        names = sorted(file.name for file in folder.iterdir() if fold_file_name(file.name).endswith(ending))
    except (FileNotFoundError, NotADirectoryError):
        return [], None
    except OSError as err:
        return [], f"the folder cannot be listed: {err.strerror or err}"
    limit = MAX_AGENTS if ending == ".md" else MAX_FILES_PER_LOCATION
    if len(names) > limit:
        return names[:limit], f"there are {len(names)} files, and Pinwarden read {limit} of them"
    return names, None


def _build_search_problem(pattern: Path, client: Client, location: ConfigLocation, problem: str) -> ConfigFile:
    """Build the unreadable `ConfigFile` that reports a pattern whose files were not all found."""
    from pinwarden.clients.config import ConfigFile

    return ConfigFile(
        client=client.id, scope=location.scope, path=str(pattern), fault="unreadable", problem=problem, link=None
    )


def _list_case_variants(path: Path, project: Path, listed: dict[Path, list[str]]) -> Iterator[Path]:
    """Yield the path, and every path in the project that a case-insensitive file system treats as the same."""
    yield path
    candidates = [project]
    for step in path.relative_to(project).parts:
        wanted = fold_file_name(step)
        candidates = [
            folder / name
            for folder in candidates
            for name in ([step] if step.startswith(("*.", "**")) else _list_folder_cached(folder, listed))
            if wanted in ("*", fold_file_name(name))
        ]
    for other in candidates[:MAX_FILES_PER_LOCATION]:
        meant = Path(*(at if step == "*" else step for at, step in zip(other.parts, path.parts, strict=True)))
        # On a case-insensitive file system, both paths are the same file, which is read only once.
        if other != meant and not _is_same_file(other, meant):
            yield other


def _list_folder_cached(folder: Path, listed: dict[Path, list[str]]) -> list[str]:
    if folder not in listed:
        try:
            listed[folder] = sorted(file.name for file in folder.iterdir())
        except OSError:
            listed[folder] = []
    return listed[folder]


def _is_same_file(one: Path, other: Path) -> bool:
    if "*" in one.name:
        one, other = one.parent, other.parent
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except OSError:
        return False


def _path_exists(path: Path) -> bool:
    """Whether the path exists. Dangling links, and paths in folders that cannot be searched, count as existing."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _find_link_target(path: Path, within: tuple[Path, ...]) -> str | None:
    """Return the resolved path if it, or a parent folder inside the project or home, is a link; otherwise None."""
    tops = [top for top in within if path.is_relative_to(top)]
    steps = [
        path,
        *(parent for parent in path.parents if any(parent.is_relative_to(top) and parent != top for top in tops)),
    ]
    if not any(step.is_symlink() for step in steps):
        return None
    try:
        return str(path.resolve())
    except (OSError, RuntimeError):  # links that form a loop
        return ""
