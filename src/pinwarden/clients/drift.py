"""Compare the approved configuration entry of a server with the current one.

Entries are compared by meaning, so a different notation alone is not a change. Values that could be secrets are masked
in a change, or left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pinwarden.clients.command_line import DANGERS, Launch, parse_launch
from pinwarden.clients.config import ConfiguredServer, normalize_entry, parse_configured_server
from pinwarden.clients.similar_names import find_similar_name
from pinwarden.clients.table import Client, get_client
from pinwarden.core.json_values import child_pointer, is_json_equal
from pinwarden.core.record import Record, replace
from pinwarden.core.report import FindingKinds, build_kind_table
from pinwarden.core.text import lazy_pattern
from pinwarden.surface.drift.changes import ABSENT, Change, sort_changes
from pinwarden.system.environment_variables import is_redirecting_variable
from pinwarden.system.masking import is_reference, mask_text, mask_url, mask_value, mask_words
from pinwarden.system.redaction import mask_configured_value
from pinwarden.system.target import StdioTarget, program_name

_DETAIL = "configuration detail{s} changed"
CONFIG_KINDS: FindingKinds = build_kind_table(
    critical=(
        ("command_swapped", "The approved entry now starts another program."),
        ("package_swapped", "The approved entry now runs another package, image, file or address."),
        ("danger_added", "The approved entry can now run code that was not reviewed."),
        ("address_moved", "The address now has another scheme or host."),
        (
            "redirecting_variable",
            "An environment variable now changes what the approved command loads, downloads or trusts.",
        ),
        ("folder_decides", "The working directory changed, and it decides which program runs."),
        ("ambiguous_entry", "The entry now has a command and an address, and clients differ in which one they use."),
        ("unusable_entry", "The entry is no longer valid, so Pinwarden cannot compare it with the approved one."),
        ("rogue_entry", "The server is configured but not approved."),
        (
            "repeated_entry",
            "The server is configured twice for the same project, and only the client knows which entry applies.",
        ),
        ("look_alike_entry", "The server is not approved, and its name is similar to an approved one."),
        ("kind_swapped", "The approved entry changed from a command to an address, or the reverse."),
    ),
    review=(
        (
            "started_directly",
            "The client starts the approved server directly instead of through Pinwarden, so changes are not blocked.",
            _DETAIL,
        ),
        ("pin_loosened", "The entry no longer names an exact release.", "exact version{s} dropped"),
        (
            "pin_tightened",
            "The entry now names an exact release, and that release was not reviewed.",
            "exact version{s} configured",
        ),
        ("release_changed", "The entry names another release of the same package.", "other release{s} configured"),
        ("launcher_changed", "The same package is started by another program.", "other launcher{s} configured"),
        ("program_moved", "A program with the same name is started from another folder.", _DETAIL),
        ("arguments_changed", "The arguments of the command changed.", "command{s} with other arguments"),
        ("variable_added", "The server gets a variable that was not reviewed.", "variable{s} added"),
        ("variable_changed", "The value of a variable changed.", "variable{s} changed"),
        ("variable_removed", "An approved variable was removed.", "variable{s} removed"),
        ("header_added", "Requests have a header that was not reviewed.", _DETAIL),
        ("header_changed", "The value of a header changed.", _DETAIL),
        ("header_removed", "An approved header was removed.", _DETAIL),
        ("folder_changed", "The working directory of the command changed.", _DETAIL),
        ("address_changed", "The address changed, on the same host.", "address{es} changed"),
        ("transport_changed", "The transport changed.", _DETAIL),
        ("entry_enabled", "An approved entry that was disabled is now enabled.", _DETAIL),
        ("consent_widened", "The client now runs more calls without asking the user.", _DETAIL),
        (
            "unlocked_entry",
            "The server is approved for another client or scope, but not for this one.",
            "client{s} added",
        ),
        (
            "answers_changed",
            "The file proposes another value for an input that is part of the server's command or address.",
            _DETAIL,
        ),
        ("member_changed", "Another member of the entry changed.", _DETAIL),
    ),
    info=(
        ("placeholder_spelled", "A reference to a variable is written differently, but names the same variable."),
        ("placeholder_filled", "A placeholder was replaced by a value."),
        ("consent_narrowed", "The client now runs fewer calls without asking the user."),
        ("entry_disabled", "The approved entry is disabled."),
    ),
)
"""All kinds of change in a client's configuration, with their severity and reason."""

ENTITY = "config"
_INSERTED = lazy_pattern(r"\$\{((?:env:|input:)?[A-Za-z_][\w.-]*)\}|\{env:([A-Za-z_]\w*)\}|%([A-Za-z_]\w{2,})%")
_INSERTION = r"(?:\$\{(?:env:|input:)?[A-Za-z_][\w.-]*\}|\{env:[A-Za-z_]\w*\}|%[A-Za-z_]\w{2,}%)"
_TEMPLATE = lazy_pattern(
    rf"(?:(?:Bearer|Basic|Token) )?{_INSERTION}(?:[/\\:;,. -]*{_INSERTION})*(?:[/\\][\w.-]{{1,20}}){{0,8}}"
)
_REFERRED = lazy_pattern(
    r"\$\{\s*((?:env:)?[A-Za-z_]\w*)?|\$([A-Z_][A-Z0-9_]{2,})|^\s*\$([A-Za-z_]\w*)\s*$|\{(?:env|file):([^{}]*)|%([A-Za-z_]\w{2,})%"
)
"""References to a variable, anywhere in a value. Clients replace them by the value of the variable."""
_COMPARED = ("command", "args", "env", "cwd", "url", "headers", "transport", "disabled")


def compare_entries(name: str, before: Any, after: Any, client: Client) -> tuple[Change, ...]:
    """Compare the approved entry of a server with the configured one. Returns all changes, the most severe first."""
    if is_json_equal(before, after):
        return ()
    if type(before) is not dict or type(after) is not dict:
        return (_EntryLocation(name=name, field="entry").build_change("unusable_entry", ABSENT, ABSENT),)
    pair = _EntryPair.parse(name, before, after, client)
    return sort_changes(_compare_pair(pair))


def build_direct_start_change(name: str, approved: Any, present: Any, client: Client, *, is_floating: bool) -> Change:
    """Build the change of an entry that starts the approved server directly instead of through ``pinwarden run``."""
    servers = (describe_server(parse_configured_server(name, entry, client)) for entry in (approved, present))
    before, after = (" ".join(shown.get("command") or [shown.get("url", "")]) for shown in servers)
    more = ["It names no exact release either."] if is_floating else []
    location = _EntryLocation(name=name, field="entry")
    return location.build_change("started_directly", before, after, *more)


def compare_proposed_inputs(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Change, ...]:
    """Compare the values that a file proposed for its inputs at approval with those that it proposes now."""
    if is_json_equal(dict(before), dict(after)):
        return ()
    location = _EntryLocation(name=name, field="inputs", path="/inputs")
    return (location.build_change("answers_changed", dict(before) or ABSENT, dict(after) or ABSENT),)


def build_added_change(kind: str, server: ConfiguredServer) -> Change:
    """Build the change of this kind for an entry that is not approved for its client and scope."""
    return _EntryLocation(name=server.name, field="added").build_change(kind, ABSENT, describe_server(server))


def build_unapproved_change(server: ConfiguredServer, names: Iterable[str], packages: Iterable[str] = ()) -> Change:
    """Build the change for an unapproved server. ``names`` and ``packages`` are those of approved servers."""
    near = find_similar_name(server.name, names)
    launched = parse_launch(server.target) if server.target else None
    if near is None and launched and launched.kind in ("npm", "pypi", "oci", "nuget", "jsr", "source"):
        near = find_similar_name(launched.identity, packages)
    location = _EntryLocation(name=server.name, field="added")
    kind = "look_alike_entry" if near is not None else "rogue_entry"
    more = [f"It is similar to {near[:80]!a}."] if near is not None else []
    dangers = _describe_dangers(launched.dangers if launched else ())
    change = location.build_change(kind, ABSENT, describe_server(server), *more, *dangers[near is None :])
    return replace(change, reason=f"{dangers[0]} {change.reason}") if dangers and near is None else change


def describe_server(server: ConfiguredServer) -> dict[str, Any]:
    """Describe an entry for output: its masked command or URL, and the names of its variables and headers."""
    if type(server.entry) is not dict:
        return {"entry": type(server.entry).__name__}
    fields = normalize_entry(server.entry, get_client(server.client))
    displayed: dict[str, Any] = {"client": server.client, "scope": server.scope, "file": server.path}
    if fields["command"] is not None:
        displayed["command"] = mask_words([str(word) for word in (fields["command"], *fields["args"])])
    if type(fields["url"]) is str:
        displayed["url"] = mask_url(fields["url"])
    for member in ("env", "headers"):
        if type(fields[member]) is dict and fields[member]:
            displayed[member] = sorted(fields[member])
    return displayed


class _EntryLocation(Record):
    """The server and the member of its entry that a change is about."""

    name: str
    field: str
    path: str = ""

    def build_change(self, kind: str, before: Any, after: Any, *more: str) -> Change:
        description = CONFIG_KINDS[kind]
        return Change(
            entity=ENTITY,
            name=self.name,
            field=self.field,
            path=self.path,
            kind=kind,
            severity=description.severity,
            before=before,
            after=after,
            reason=" ".join((description.reason, *more)),
            phrase=description.phrase,
            topic="the configuration",
        )


class _EntryPair(Record):
    """The approved entry and the current entry of a server, both parsed."""

    name: str
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    old_server: ConfiguredServer
    new_server: ConfiguredServer
    old_launch: Launch | None
    new_launch: Launch | None
    client: Client

    @classmethod
    def parse(cls, name: str, before: dict[str, Any], after: dict[str, Any], client: Client) -> _EntryPair:
        old, new = parse_configured_server(name, before, client), parse_configured_server(name, after, client)
        return cls(
            name=name,
            old=normalize_entry(before, client),
            new=normalize_entry(after, client),
            old_server=old,
            new_server=new,
            old_launch=parse_launch(old.target) if old.target else None,
            new_launch=parse_launch(new.target) if new.target else None,
            client=client,
        )

    @property
    def new_dangers(self) -> tuple[str, ...]:
        known = self.old_launch.dangers if self.old_launch else ()
        return tuple(code for code in (self.new_launch.dangers if self.new_launch else ()) if code not in known)

    def locate(self, field: str, *steps: str) -> _EntryLocation:
        path = ""
        for token in (field, *steps):
            path = child_pointer(path, token)
        return _EntryLocation(name=self.name, field=field, path=path)

    def differs(self, field: str) -> bool:
        return not is_json_equal(_empty_to_none(self.old.get(field)), _empty_to_none(self.new.get(field)))


def _compare_pair(pair: _EntryPair) -> Iterator[Change]:
    yield from _compare_validity(pair)
    yield from _compare_commands(pair)
    yield from _compare_arguments(pair)
    yield from _compare_variables(pair)
    yield from _compare_folders(pair)
    yield from _compare_addresses(pair)
    yield from _compare_headers(pair)
    yield from _compare_disabled(pair)
    yield from _compare_other_members(pair)


def _compare_validity(pair: _EntryPair) -> Iterator[Change]:
    old, new = pair.old_server, pair.new_server
    if new.target is None and old.target is not None:
        yield _EntryLocation(name=pair.name, field="entry").build_change("unusable_entry", ABSENT, ABSENT)
    elif new.problem and not old.problem:
        yield _EntryLocation(name=pair.name, field="entry").build_change("ambiguous_entry", ABSENT, ABSENT)


def _compare_commands(pair: _EntryPair) -> Iterator[Change]:
    if not pair.differs("command"):
        return
    old, new = pair.old["command"], pair.new["command"]
    location = pair.locate("command")
    before, after = _display_program(old), _display_program(new)
    if old is None or new is None:
        yield location.build_change("kind_swapped", before, after, *_describe_dangers(pair.new_dangers))
    elif type(old) is str and type(new) is str and not pair.new_dangers and program_name(old) == program_name(new):
        yield location.build_change("program_moved", before, after)
    elif _is_same_release(pair) and not pair.new_dangers:
        yield location.build_change("launcher_changed", before, after)
    else:
        yield location.build_change("command_swapped", before, after, *_describe_dangers(pair.new_dangers))


def _compare_arguments(pair: _EntryPair) -> Iterator[Change]:
    if not pair.differs("args"):
        return
    before, after = _display_arguments(pair.old), _display_arguments(pair.new)
    kind = _choose_arguments_kind(pair)
    dangers = () if pair.differs("command") else pair.new_dangers  # the change of the command already reports them
    yield pair.locate("args").build_change(kind, before, after, *_describe_dangers(dangers))


def _choose_arguments_kind(pair: _EntryPair) -> str:
    old_launch, new_launch = pair.old_launch, pair.new_launch
    if pair.differs("command") or old_launch is None or new_launch is None:
        return "arguments_changed"
    if pair.new_dangers:
        return "danger_added"
    if (old_launch.kind, _normalize_identity(old_launch)) != (new_launch.kind, _normalize_identity(new_launch)):
        return "package_swapped"
    if old_launch.via is not None and new_launch.via is not None and old_launch.via != new_launch.via:
        old_launch, new_launch = old_launch.via, new_launch.via
        if (old_launch.kind, _normalize_identity(old_launch)) != (new_launch.kind, _normalize_identity(new_launch)):
            return "package_swapped"
    if old_launch.pinned and not new_launch.pinned:
        return "pin_loosened"
    if not old_launch.pinned and new_launch.pinned and _differs_in_one_word(pair):
        return "pin_tightened"
    return (
        "release_changed"
        if (old_launch.version, old_launch.digest) != (new_launch.version, new_launch.digest)
        else "arguments_changed"
    )


def _is_same_release(pair: _EntryPair) -> bool:
    old_launch, new_launch = pair.old_launch, pair.new_launch
    if old_launch is None or new_launch is None or old_launch.kind in ("path", "shell"):
        return False
    return (old_launch.kind, _normalize_identity(old_launch), old_launch.version, old_launch.digest) == (
        new_launch.kind,
        _normalize_identity(new_launch),
        new_launch.version,
        new_launch.digest,
    )


def _normalize_identity(launched: Launch) -> str:
    """Return the identity of a launch, with the name of a Python package normalised."""
    return (launched.purl or launched.identity).partition("@")[0] if launched.kind == "pypi" else launched.identity


def _differs_in_one_word(pair: _EntryPair) -> bool:
    old, new = pair.old["args"], pair.new["args"]
    return len(old) == len(new) and sum(one != other for one, other in zip(old, new, strict=True)) == 1


def _compare_variables(pair: _EntryPair) -> Iterator[Change]:
    yield from _compare_named_values(pair, "env", _VARIABLE_KINDS)


def _compare_headers(pair: _EntryPair) -> Iterator[Change]:
    yield from _compare_named_values(pair, "headers", _HEADER_KINDS)


class _ValueKinds(Record):
    """The kinds of change of an environment variable or header."""

    added: str
    removed: str
    changed: str


_VARIABLE_KINDS = _ValueKinds(added="variable_added", removed="variable_removed", changed="variable_changed")
_HEADER_KINDS = _ValueKinds(added="header_added", removed="header_removed", changed="header_changed")


def _compare_named_values(pair: _EntryPair, field: str, kinds: _ValueKinds) -> Iterator[Change]:
    if not pair.differs(field):
        return
    old, new = pair.old[field] or {}, pair.new[field] or {}
    if type(old) is not dict or type(new) is not dict:
        yield pair.locate(field).build_change(kinds.changed, ABSENT, ABSENT)
        return
    for name in sorted({*old, *new}):
        before, after = old.get(name, ABSENT), new.get(name, ABSENT)
        if before is ABSENT or after is ABSENT or not is_json_equal(before, after):
            kind = _choose_value_kind(name, before, after, kinds)
            yield pair.locate(field, name).build_change(kind, _display_value(name, before), _display_value(name, after))


def _choose_value_kind(name: str, before: Any, after: Any, kinds: _ValueKinds) -> str:
    if after is ABSENT:
        return kinds.removed
    if (
        type(before) is str
        and type(after) is str
        and find_reference_name(before) == find_reference_name(after) is not None
    ):
        return "placeholder_spelled"
    if kinds is _VARIABLE_KINDS and is_redirecting_variable(name):
        return "redirecting_variable"
    if before is ABSENT:
        return kinds.added
    # Replacing the placeholder <NAME> by a value is expected. A URL or a reference to another variable is not.
    if type(before) is str and before == f"<{name}>" and type(after) is str and "://" not in after:
        return kinds.changed if _refers_elsewhere(name, after) else "placeholder_filled"
    return kinds.changed


def find_reference_name(value: str) -> str | None:
    """Return the variable that a placeholder refers to, in any notation; None if the value is no placeholder.

    For a value of several parts, such as ``Bearer {env:TOKEN}``, returns the value with each variable as ``${NAME}``.
    """
    text = value.strip()
    for opening, closing in (
        ("${{ secrets.", "}}"),
        ("${{secrets.", "}}"),
        ("${env:", "}"),
        ("{env:", "}"),
        ("<", ">"),
    ):
        if text.startswith(opening) and text.endswith(closing) and is_reference(text):
            return text[len(opening) : -len(closing)].strip()
    if text.startswith("${") and text.endswith("}") and text[2:-1].isidentifier():
        return text[2:-1]
    if text.startswith("$") and text[1:].isidentifier():
        return text[1:]
    # A reference with a scheme before it, a path after it or another reference next to it: normalise the notation.
    return _INSERTED.sub(_normalize_match, text) if _TEMPLATE.fullmatch(text) else None


def normalize_placeholders(text: str) -> str:
    """Rewrite every placeholder of a variable as ``${NAME}``."""
    name = find_reference_name(text)
    if name is None:
        return _INSERTED.sub(_normalize_match, text)
    return name if "${" in name else f"${{{name}}}"


def _normalize_match(inserted: re.Match[str]) -> str:
    name = next(part for part in inserted.groups() if part)
    return f"${{{name.removeprefix('env:')}}}"


def _refers_elsewhere(name: str, value: str) -> bool:
    """Whether a value is, or contains, a reference to a variable other than ``name``."""
    if is_reference(value) and not _REFERRED.search(value):
        return True
    return any(
        next((part for part in match.groups() if part), "").removeprefix("env:") != name
        for match in _REFERRED.finditer(value)
    )


def _compare_folders(pair: _EntryPair) -> Iterator[Change]:
    if not pair.differs("cwd"):
        return
    resolved_in_folder = bool(pair.new_launch and {"relative_path"} & set(pair.new_launch.dangers)) or bool(
        pair.new_launch and pair.new_launch.kind in ("module", "script")
    )
    kind = "folder_decides" if resolved_in_folder else "folder_changed"
    yield pair.locate("cwd").build_change(kind, _display_program(pair.old["cwd"]), _display_program(pair.new["cwd"]))


def _compare_addresses(pair: _EntryPair) -> Iterator[Change]:
    if not pair.differs("url"):
        if pair.differs("transport"):
            yield pair.locate("transport").build_change(
                "transport_changed", pair.old["transport"], pair.new["transport"]
            )
        return
    old, new = pair.old["url"], pair.new["url"]
    before, after = _display_address(old), _display_address(new)
    if old is None or new is None:
        # If the command differs too, the change of the command reports that the kind was swapped.
        kind = (
            "kind_swapped" if not pair.differs("command") else "address_moved" if new is not None else "address_changed"
        )
    else:
        kind = "address_changed" if _get_origin(old) == _get_origin(new) else "address_moved"
    yield pair.locate("url").build_change(kind, before, after, *_describe_dangers(pair.new_dangers))


def _get_origin(url: Any) -> str:
    """Return the scheme, user and host of a URL in lower case. Other spellings of the same host count as different."""
    text = url if type(url) is str else ""
    scheme, _, rest = text.partition("://")
    host = rest
    for mark in "/?#\\":
        host = host.partition(mark)[0]
    return f"{scheme.lower()}://{host.lower()}"


def _compare_disabled(pair: _EntryPair) -> Iterator[Change]:
    if pair.old["disabled"] != pair.new["disabled"]:
        kind = "entry_disabled" if pair.new["disabled"] else "entry_enabled"
        yield pair.locate("disabled").build_change(kind, pair.old["disabled"], pair.new["disabled"])


def _compare_other_members(pair: _EntryPair) -> Iterator[Change]:
    for field in sorted({*pair.old, *pair.new}):
        if field in _COMPARED or not pair.differs(field):
            continue
        before, after = pair.old.get(field, ABSENT), pair.new.get(field, ABSENT)
        kind = "member_changed"
        if field in pair.client.entry_format.auto_approve_members:
            narrowed = "*" in _list_auto_approved(before) or _list_auto_approved(after) <= _list_auto_approved(before)
            kind = "consent_narrowed" if narrowed else "consent_widened"
        yield pair.locate(field).build_change(kind, _display_member(field, before), _display_member(field, after))


def _list_auto_approved(value: Any) -> frozenset[str]:
    """Return the tools that the client calls without asking. ``*`` means every tool."""
    if type(value) is list:
        return frozenset(str(item) for item in value)
    return frozenset({"*"}) if value is True else frozenset()


def get_package_name(server: ConfiguredServer) -> str | None:
    """Return the package or image that a server runs; None if it runs neither."""
    launched = parse_launch(server.target) if isinstance(server.target, StdioTarget) else None
    return launched.identity if launched and launched.kind in ("npm", "pypi", "oci", "nuget", "jsr", "source") else None


def _describe_dangers(dangers: Iterable[str]) -> list[str]:
    return [DANGERS[code] for code in sorted(dangers, key=lambda code: code != "download_and_run")]


def _empty_to_none(value: Any) -> Any:
    """Return None for empty lists and objects, because some clients write these and others leave them out."""
    return None if value in ({}, [], None) else value


def _display_value(name: str, value: Any) -> Any:
    return ABSENT if value is ABSENT else mask_configured_value(name, value)


def _display_program(value: Any) -> Any:
    return ABSENT if value is None else mask_text(value) if type(value) is str else type(value).__name__


def _display_arguments(fields: Mapping[str, Any]) -> list[str]:
    # The program is left out, so that it is not mistaken for an option whose value is a secret.
    return mask_words([word if type(word) is str else type(word).__name__ for word in fields["args"]])


def _display_address(value: Any) -> Any:
    return ABSENT if value is None else mask_url(value) if type(value) is str else type(value).__name__


def _display_member(field: str, value: Any) -> Any:
    if value is ABSENT or type(value) in (bool, int, float):
        return value
    if type(value) is list and all(type(item) is str for item in value):
        return mask_words(value)
    return mask_value(field, value) if type(value) is str else type(value).__name__
