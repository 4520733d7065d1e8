"""The configuration files of MCP clients on this machine: find, read, and edit one server at a time.

Finding never fails: a file that cannot be read or parsed is a value that says so. An edit changes exactly one server,
or is refused with an error code and changes nothing. The result of an edit is always parsed again and must be the old
configuration with that server changed. Each format has its own text editor (``jsonc.py``, ``toml_text.py``,
``yaml_text.py``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pinwarden.clients.config import entry_in, read_document
from pinwarden.clients.jsonc import decode_text, put_value, remove_value, render_file
from pinwarden.clients.table import (
    CLIENTS,
    FOLDERS,
    Client,
    Format,
    Place,
    Scope,
    System,
    client_of,
    installation_place,
)
from pinwarden.clients.toml_text import put_table, remove_table
from pinwarden.clients.yaml_text import put_named, remove_named, render_yaml
from pinwarden.core.errors import PinwardenError
from pinwarden.core.text import fold_file_name
from pinwarden.system.files import read_file, write_atomically

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfigFile, ConfiguredServer

MAX_CONFIG_BYTES = 16 * 1024 * 1024
"""Claude Code keeps its history in the file that also names servers; such files reach some megabytes."""

MAX_FILES_PER_PLACE = 200  # a folder of configuration blocks holds a handful
MAX_FOLDERS = 500  # folders of agents
MAX_AGENTS = 2000  # collections of agents are shared, and hold hundreds

Action = Literal["created", "updated", "unchanged", "removed", "missing"]


def this_system() -> System:
    """The system that Pinwarden runs on, as the table of clients calls it."""
    return "windows" if sys.platform == "win32" else "mac" if sys.platform == "darwin" else "linux"


def discover(
    project: Path, home: Path, system: System, env: Mapping[str, str], *, root: Path = Path("/")
) -> list[ConfigFile]:
    """Every configuration file that exists for this project and user, in the order of the table of clients.

    A file that several clients read is listed once, under the first of them. ``root`` is the top of the file system,
    under which administrators put files.
    """
    return _found(_Folders(project, home, system, env, root), get_args(Scope))


def discover_project(project: Path, system: System) -> list[ConfigFile]:
    """Every configuration file that exists in a project's folder; the user's own files are left out."""
    return _found(_Folders(project, project, system, {}, Path("/")), ("project",))


def _found(folders: _Folders, scopes: Container[Scope]) -> list[ConfigFile]:
    found: dict[Path, ConfigFile] = {}
    listed: dict[Path, list[str]] = {}
    project, home = folders.known["project"], folders.known["home"]
    for client in CLIENTS.values():
        for place in client.places:
            if folders.system not in place.systems or place.scope not in scopes:
                continue
            pattern = folders.fill_in(place.path)
            for written in _spellings(pattern, project, listed) if place.scope == "project" else (pattern,):
                for path, problem in _matching(written):
                    known = path.absolute()  # the project may be the home folder, in another spelling
                    if problem is not None:
                        found[known] = _unseen(path, client, place, problem)
                    elif known not in found and _is_there(path):
                        found[known] = load(path, client, place, within=(project, home))
    return list(found.values())


def project_names() -> frozenset[str]:
    """What a folder must hold to configure a client: the first step of each path below a project."""
    paths = (
        Path(place.path).parts for client in CLIENTS.values() for place in client.places if place.scope == "project"
    )
    return frozenset(parts[1] for parts in paths)


def load(path: Path, client: Client, place: Place, *, within: tuple[Path, ...] = ()) -> ConfigFile:
    """One configuration file as it lies there. It never raises."""
    from pinwarden.clients.config import ConfigFile, read_config  # most projects have no such file

    link = _link(path, within)
    if place.code:
        return ConfigFile(client=client.id, scope=place.scope, path=str(path), link=link, settings=True, code=True)
    try:
        data = read_file(path, MAX_CONFIG_BYTES)
    except PinwardenError as err:
        return ConfigFile(
            client=client.id,
            scope=place.scope,
            path=str(path),
            fault="unreadable",
            problem=err.message.removeprefix(f"{path}").lstrip(": "),
            link=link,
            settings=place.settings,
        )
    return read_config(data, client=client, place=place, path=str(path), link=link)


def installation_paths(project: Path, home: Path, system: System, env: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """The file that each client and scope is installed to."""
    folders = _Folders(project, home, system, env, Path("/"))
    found: dict[tuple[str, str], str] = {}
    for client in CLIENTS.values():
        for scope in ("project", "global"):
            place = installation_place(client, scope)
            if place is not None:
                found[client.id, scope] = str(folders.fill_in(place.path))
    return found


def install_entry(path: Path, client: str, name: str, fragment: Any) -> Action:
    """Put a server into a client's file: replaced if it is there, added if not; everything else stays as it is.

    ``fragment`` is a configuration of that client which holds the server, as a lock keeps it.
    """
    from pinwarden.clients.config import entry_in, format_of
    from pinwarden.clients.files import with_entry  # readers of configurations need no editors

    known = client_of(client)
    entry = entry_in(fragment, known, name)
    if type(entry) is not dict or not name:
        raise PinwardenError("CONFIG_UNEDITABLE", f"the fragment does not hold the server {name[:80]!a}")
    _refuse_linked_folder(path, known)
    before = _read_or_none(path)
    after = with_entry(before or b"", form=format_of(path.name), client=known, name=name, fragment=fragment)
    if after == before:
        return "unchanged"
    _write(path, before, after)
    return "created" if before is None else "updated"


class ConfigEdits:
    """Edits of clients' files that belong together: all of them stay, or none."""

    def __init__(self) -> None:
        self._done: list[tuple[Path, bytes, bytes]] = []

    def exchange(self, server: ConfiguredServer, entry: dict[str, Any]) -> Action:
        """Exchange the entry of a server where it stands; the same name elsewhere in the file is another server."""
        before, after = _exchanged(server, entry)
        if after == before:
            return "unchanged"
        path = Path(server.path)
        _write(path, before, after)
        self._done.append((path, before, after))
        return "updated"

    def take_back(self) -> None:
        """Put every file back as it was, to the byte, unless its client wrote it meanwhile."""
        while self._done:
            path, before, after = self._done.pop()
            if _read_or_none(path) == after:
                write_atomically(path, before)


@contextmanager
def config_edits() -> Iterator[ConfigEdits]:
    """Edits that are undone if the block raises or is interrupted."""
    edits = ConfigEdits()
    try:
        yield edits
    except BaseException:
        edits.take_back()
        raise


def refuse_uneditable(server: ConfiguredServer, entry: dict[str, Any]) -> None:
    """Raise if the entry of a server cannot be exchanged in place. Writes nothing."""
    _exchanged(server, entry)


def _exchanged(server: ConfiguredServer, entry: dict[str, Any]) -> tuple[bytes, bytes]:
    """The file of a server, and the same file with the other entry."""
    from pinwarden.clients.config import config_with, format_of
    from pinwarden.clients.files import with_entry, with_entry_at
    from pinwarden.core.json_values import pointer_tokens

    path, known, name = Path(server.path), client_of(server.client), server.name
    steps = tuple(pointer_tokens(server.pointer))
    _refuse_linked_folder(path, known)
    before = _read_or_none(path)
    if before is None or not steps:
        raise PinwardenError("CONFIG_UNEDITABLE", f"{path} does not hold the server {name[:80]!a} any more")
    if path.suffix.lower() == ".md":
        raise PinwardenError("CONFIG_UNEDITABLE", f"{path.name} is an agent's text; write it there yourself")
    form = format_of(path.name)
    usual = steps == (*known.root, name) or (known.spelling.named_list and steps[:-1] == known.root)
    if not usual:
        return before, with_entry_at(before, form=form, steps=steps, entry=entry)
    fragment = config_with(known, name, entry)
    return before, with_entry(before, form=form, client=known, name=name, fragment=fragment)


def remove_entry(path: Path, client: str, name: str) -> Action:
    """Take a server out of a client's file; everything else stays as it is."""
    from pinwarden.clients.config import entry_in, format_of, read_document
    from pinwarden.clients.files import without_entry

    known = client_of(client)
    _refuse_linked_folder(path, known)
    before = _read_or_none(path)
    if before is None or entry_in(read_document(before, path.name), known, name) is None:
        return "missing"
    _write(path, before, without_entry(before, form=format_of(path.name), client=known, name=name))
    return "removed"


def _read_or_none(path: Path) -> bytes | None:
    _refuse_link(path)
    if not _is_there(path):
        return None
    return read_file(path, MAX_CONFIG_BYTES)


def _write(path: Path, before: bytes | None, after: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise PinwardenError("FILE_UNWRITABLE", f"{path.parent}: {err.strerror or err}") from err
    # Clients write their files too. Whoever wrote since we read must not lose that.
    if _read_or_none(path) != before:
        raise PinwardenError("CONFIG_UNEDITABLE", f"{path} was changed by somebody else; try again")
    write_atomically(path, after)


def _refuse_link(path: Path) -> None:
    """Replacing a link by a file, or writing where a repository's link leads, are both surprises."""
    if path.is_symlink():
        raise PinwardenError(
            "CONFIG_UNEDITABLE",
            f"{path} is a symbolic link",
            hint="Edit the file that it leads to, or remove the link.",
        )


def _refuse_linked_folder(path: Path, client: Client) -> None:
    """The same for a folder on the way that lies in the project or home, such as ``.cursor``."""
    for place in client.places:
        for below in _below_top(place) if place.installs else ():
            if path.parts[-len(below) :] == below:
                for folder in path.parents[: len(below) - 1]:
                    _refuse_link(folder)


def _below_top(place: Place) -> Iterator[tuple[str, ...]]:
    """The steps from the project or home to a file, on each system."""
    name, _, rest = place.path.partition("/")
    if name in ("{project}", "{home}"):
        yield Path(rest).parts
        return
    yield Path(rest).parts  # below wherever a variable leads
    for otherwise in FOLDERS[name.strip("{}")].otherwise.values():
        yield (*Path(otherwise.partition("/")[2]).parts, *Path(rest).parts)


class _Folders:
    """Fills in the folders that the paths of the table begin with."""

    def __init__(self, project: Path, home: Path, system: System, env: Mapping[str, str], root: Path) -> None:
        self.system = system
        self.env = env
        self.known = {"project": project, "home": home, "root": root}

    def fill_in(self, path: str) -> Path:
        name, rest = re.fullmatch(r"\{(\w+)\}/?(.*)", path).groups()  # type: ignore[union-attr]  # so is the table
        return self._folder(name) / rest if rest else self._folder(name)

    def _folder(self, name: str) -> Path:
        if name in self.known:
            return self.known[name]
        folder = FOLDERS[name]
        value = self.env.get(folder.variable, "") if folder.variable and self.system in folder.variable_on else ""
        # A relative folder would depend on where Pinwarden runs, and no client means that.
        if value and Path(value).is_absolute():
            return Path(value)
        return self.fill_in(folder.otherwise[self.system])


def _matching(pattern: Path) -> Iterator[tuple[Path, str | None]]:
    """The files that are meant, and with a reason those places where there may be more than could be seen."""
    place = next((place for place, step in enumerate(pattern.parts) if step.startswith("*")), None)
    if place is None:
        yield pattern, None
        return
    folder, rest = Path(*pattern.parts[:place]), pattern.parts[place + 1 :]
    if pattern.parts[place] == "**":
        below, problem = _folders_below(folder)
        for each in below:
            yield from _matching(Path(each, *rest))
        if problem is not None:
            yield pattern, problem
        return
    names, problem = _names(folder, pattern.parts[place])
    for name in names:
        yield from _matching(Path(folder, name, *rest))
    if problem is not None:
        yield pattern, problem


def _folders_below(folder: Path) -> tuple[list[Path], str | None]:
    """A folder and all folders in it, links followed once, and why there may be more than could be seen."""
    waiting, found, known = [folder], list[Path](), set[tuple[int, int]]()
    while waiting:
        each = waiting.pop()
        try:
            status = each.stat()
            if (status.st_dev, status.st_ino) in known or not each.is_dir():
                continue
            known.add((status.st_dev, status.st_ino))
            if len(found) == MAX_FOLDERS:
                return found, f"more than {MAX_FOLDERS} folders, of which {MAX_FOLDERS} are read"
            found.append(each)
            waiting += sorted((below for below in each.iterdir() if below.is_dir()), reverse=True)
        except FileNotFoundError:
            continue
        except OSError as err:
            return found, f"the folder {each.name!a} cannot be listed: {err.strerror or err}"
    return found, None


def _names(folder: Path, pattern: str) -> tuple[list[str], str | None]:
    """The names in a folder that end like the pattern, and why there may be more of them than could be seen."""
    ending = fold_file_name(pattern.removeprefix("*"))
    try:
        names = sorted(each.name for each in folder.iterdir() if fold_file_name(each.name).endswith(ending))
    except (FileNotFoundError, NotADirectoryError):
        return [], None
    except OSError as err:
        return [], f"the folder cannot be listed: {err.strerror or err}"
    most = MAX_AGENTS if ending == ".md" else MAX_FILES_PER_PLACE
    if len(names) > most:
        return names[:most], f"{len(names)} files, of which {most} are read"
    return names, None


def _unseen(pattern: Path, client: Client, place: Place, problem: str) -> ConfigFile:
    from pinwarden.clients.config import ConfigFile

    return ConfigFile(
        client=client.id, scope=place.scope, path=str(pattern), fault="unreadable", problem=problem, link=None
    )


def _spellings(path: Path, project: Path, listed: dict[Path, list[str]]) -> Iterator[Path]:
    """The path, and every one in the project that a file system which ignores case takes for it."""
    yield path
    spelt = [project]
    for step in path.relative_to(project).parts:
        wanted = fold_file_name(step)
        spelt = [
            folder / name
            for folder in spelt
            for name in ([step] if step.startswith(("*.", "**")) else _listed(folder, listed))
            if wanted in ("*", fold_file_name(name))
        ]
    for other in spelt[:MAX_FILES_PER_PLACE]:
        meant = Path(*(at if step == "*" else step for at, step in zip(other.parts, path.parts, strict=True)))
        # Where case is ignored, the other spelling is the same file.
        if other != meant and not _is_same(other, meant):
            yield other


def _listed(folder: Path, listed: dict[Path, list[str]]) -> list[str]:
    if folder not in listed:
        try:
            listed[folder] = sorted(each.name for each in folder.iterdir())
        except OSError:
            listed[folder] = []
    return listed[folder]


def _is_same(one: Path, other: Path) -> bool:
    if "*" in one.name:
        one, other = one.parent, other.parent
    try:
        return os.path.samestat(one.lstat(), other.lstat())
    except OSError:
        return False


def _is_there(path: Path) -> bool:
    """Whether something has that name, a link to nowhere included. A folder that may not be entered counts as well."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _link(path: Path, within: tuple[Path, ...]) -> str | None:
    """Where the path leads if it, or a folder between it and the project or home, is a link."""
    tops = [top for top in within if path.is_relative_to(top)]
    steps = [
        path,
        *(parent for parent in path.parents if any(parent.is_relative_to(top) and parent != top for top in tops)),
    ]
    if not any(step.is_symlink() for step in steps):
        return None
    try:
        return str(path.resolve())
    except (OSError, RuntimeError):  # a link that leads to itself
        return ""


def with_entry(data: bytes, *, form: Format, client: Client, name: str, fragment: Any) -> bytes:
    """The configuration with the server of the fragment in it. Its other members count only where a file is new."""
    before = read_document(data, f"x.{form}")
    entry = entry_in(fragment, client, name)
    if type(before) is not dict:
        raise PinwardenError("CONFIG_UNEDITABLE", "the file does not hold an object")
    current = entry_in(before, client, name)
    if current is not None and _pruned(current) == _pruned(entry):
        return data
    text = decode_text(data)
    if not text.strip():
        return _checked(_new_file(form, client, name, fragment), form, {**fragment}).encode()
    expected = _with_value(before, client, name, entry)
    if form == "json":
        for member in _accompanying(before, fragment, client):
            text = put_value(text, (member,), fragment[member])
            expected[member] = fragment[member]
        edited = put_value(text, (*client.root, name), entry) if not client.spelling.named_list else _refuse_list()
    elif form == "toml":
        edited = put_table(text, (*client.root, name), entry)
    else:
        edited = put_named(text, client.root[0], name, entry)
    return _checked(edited, form, expected).encode()


def with_entry_at(data: bytes, *, form: Format, steps: tuple[str, ...], entry: dict[str, Any]) -> bytes:
    """The configuration with the server at one place exchanged, wherever in a JSON file its client looks for it."""
    before = read_document(data, f"x.{form}")
    expected = deepcopy(before)
    holder: Any = expected
    for step in steps[:-1]:
        holder = holder.get(step) if type(holder) is dict else None
    if form != "json" or type(holder) is not dict or steps[-1] not in holder:
        raise PinwardenError("CONFIG_UNEDITABLE", f"the server at /{'/'.join(steps)[:120]} is not edited there")
    holder[steps[-1]] = entry
    return _checked(put_value(decode_text(data), steps, entry), form, expected).encode()


def without_entry(data: bytes, *, form: Format, client: Client, name: str) -> bytes:
    """The configuration without that server."""
    before = read_document(data, f"x.{form}")
    text = decode_text(data)
    expected = _with_value(before, client, name, None)
    if form == "json":
        edited = remove_value(text, (*client.root, name)) if not client.spelling.named_list else _refuse_list()
    elif form == "toml":
        edited = remove_table(text, (*client.root, name))
    else:
        edited = remove_named(text, client.root[0], name)
    return _checked(edited, form, expected).encode()


def _new_file(form: Format, client: Client, name: str, fragment: dict[str, Any]) -> str:
    if form == "json":
        return render_file(fragment)
    if form == "toml":
        return put_table("", (*client.root, name), entry_in(fragment, client, name))
    return render_yaml(fragment)


def _accompanying(before: dict[str, Any], fragment: dict[str, Any], client: Client) -> list[str]:
    """Members beside the servers that a file gets if it has none of its own: opencode names its schema."""
    return [name for name in fragment if name == "$schema" and name not in before and name not in client.root]


def _with_value(before: dict[str, Any], client: Client, name: str, entry: Any) -> dict[str, Any]:
    """What the edited text has to mean; without an entry, the server is gone."""
    expected: dict[str, Any] = deepcopy(before)
    holder: Any = expected
    for step in client.root[:-1]:
        holder = holder.setdefault(step, {})
    last = client.root[-1]
    if client.spelling.named_list:
        servers = holder.get(last) or []
        named = [type(server) is dict and server.get("name") == name for server in servers]
        if entry is None:
            holder[last] = [server for server, is_it in zip(servers, named, strict=True) if not is_it]
        elif any(named):
            holder[last] = [entry if is_it else server for server, is_it in zip(servers, named, strict=True)]
        else:
            holder[last] = [*servers, entry]
        return expected
    servers = holder.get(last)
    if servers is None:
        servers = holder[last] = {}
    if type(servers) is not dict:
        raise PinwardenError("CONFIG_UNEDITABLE", f"{last} is not an object")
    if entry is None:
        servers.pop(name, None)
    else:
        servers[name] = entry
    return expected


def _checked(text: str, form: Format, expected: Any) -> str:
    try:
        found = read_document(text.encode(), f"x.{form}")
    except PinwardenError as err:
        raise PinwardenError("CONFIG_UNEDITABLE", "the edited file could not be read again") from err
    if _pruned(found) != _pruned(expected):
        raise PinwardenError("CONFIG_UNEDITABLE", "the server cannot be edited without touching anything else")
    return text


def _pruned(value: Any) -> Any:
    """The value without empty objects and absent members, which TOML does not write; true and 1 are different."""
    if type(value) is dict:
        members = {name: _pruned(item) for name, item in value.items()}
        return {name: item for name, item in members.items() if item not in ({}, ("NoneType", None))}
    if type(value) is list:
        return [_pruned(item) for item in value]
    return (type(value).__name__, value)


def _refuse_list() -> str:
    raise PinwardenError("CONFIG_UNEDITABLE", "a list of servers in a JSON file is not edited")
