"""Lock what is already configured on this machine and in this repository, without needing a registry.

Each configured server becomes an entry whose approved configuration is what stands in the client's file, with every
literal value of a variable, header or unknown member replaced by a placeholder: the lock pins which variables a server
gets, never what is in them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pinwarden.clients.config import ConfigFile, ConfiguredServer
from pinwarden.clients.findings import proposed_inputs, server_findings
from pinwarden.clients.launch.parse import parse_launch
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report
from pinwarden.lock import entry as lock_entry
from pinwarden.lock import lock_store
from pinwarden.lock.extension import ConfiguredIn, Extension, pin_surface, surface_path
from pinwarden.lock.relock import relock, without
from pinwarden.project import approvable as approval_words
from pinwarden.project.approvable import Approvable, in_own_files
from pinwarden.project.configs import view_of
from pinwarden.project.configured_entry import fragment_of, lock_client, locked_as
from pinwarden.project.init_decisions import Accepted, Approved, Discovery, Found
from pinwarden.project.init_report import init_report
from pinwarden.project.lock import approval_of, probed_release, with_earlier_pins
from pinwarden.surface.drift.changes import CRITICAL
from pinwarden.system.masking import MASK, is_secret_name, looks_secret, mask_url, mask_words
from pinwarden.system.redaction import entry_command_lines, entry_names, entry_urls
from pinwarden.system.target import StdioTarget

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.lock import Approver
    from pinwarden.project.project import Project
    from pinwarden.project.server_start import PreparedProbe
    from pinwarden.surface.probe.probe import ProbeOptions

_NOT_AGREED = "nobody agreed to ask it (--allow-execute)"
_LITERAL = re.compile(r"<([^<>\s]*[a-z][^<>\s]*)>")
"""A word in angle brackets that nobody would take for the name of a variable."""


def discover_servers(project: Project, accepted: Accepted, scope: str = "all") -> Discovery:
    """Find every configured server and hold it against the lock. Nothing is started, nothing is written.

    1. Read the configurations of all clients, and the lock if there is one.
    2. Leave out what cannot be locked, with the reason.
    3. Leave out what has a critical finding, unless it was named.
    4. See which of the rest are new or different, and so need a decision.
    """
    # Servers of the user's other projects are their affair.
    files = view_of(project, (), project.configs(), scope=scope).files
    lock, texts = lock_store.read_with_files(project.lock)
    approved = Approved(project, lock, texts, files)
    found = tuple(_decided(each, accepted) for each in _choose(files, approved))
    _refuse_unknown(accepted, found)
    return Discovery(project=project, files=files, lock=lock, approved=approved, found=found)


def ask_servers(
    discovery: Discovery, options: ProbeOptions | None, on_progress: Callable[[int, int], None] | None = None
) -> Discovery:
    """Ask the servers that may be locked, if that was allowed; another text than the approved one needs a decision.

    While a decision is missing nobody is asked: a planted server must not be started to find out what it says.
    """
    if discovery.undecided:
        return discovery
    found = _ask_all(discovery, options, on_progress)
    return replace(discovery, found=tuple(_with_text(discovery.approved, each) for each in found))


def lock_answer(discovery: Discovery, key: str, *, now: str, approver: Approver) -> Discovery:
    """The same after one more server was accepted on a terminal. Its entry is written at once: an answer that was given
    is kept, whatever happens to the questions after it."""
    discovery = discovery.accepting(key)
    lock = _write(discovery, [each for each in discovery.found if each.key == key and each.answered], approver, now)
    return replace(discovery, lock=lock, saved=discovery.saved | {key})


def lock_found(discovery: Discovery, *, now: str, approver: Approver) -> Report:
    """Write all entries and approved surfaces in one step, unless a decision is missing, and say what stands out."""
    found = [each for each in discovery.found if each.refused is None and each.standing.state != "unchanged"]
    fresh = [] if discovery.undecided else found
    if fresh or _refused_later(discovery) or (discovery.lock is not None and not discovery.undecided):
        _write(discovery, fresh, approver, now)
    return init_report(discovery)


def _what_happened(each: Found) -> str:
    """How a server came into the lock, in the words that are recorded."""
    if each.answered:
        return approval_words.ANSWERED
    if each.named:
        return approval_words.NAMED
    if each.standing.state != "first":
        return approval_words.ALL
    return approval_words.FOUND if each.surface is None else approval_words.FOUND_WITH_TEXT


def _decided(each: Found, accepted: Accepted) -> Found:
    named = accepted.by_name(each.server.name, each.key)
    each = replace(
        each, named=named, accepted=named or accepted.everything, warnings_approved=named and accepted.warnings
    )
    if each.refused is not None or each.standing.state == "unchanged" or named:
        return each
    critical = [finding for finding in server_findings(each.server) if finding.severity == CRITICAL]
    if not critical:
        return each
    return replace(each, refused=f"{critical[0].message} If that is meant, accept it by name: {each.how_to_accept}")


def _with_text(approved: Approved, each: Found) -> Found:
    """What the server says beside what was approved. Text with scan warnings is only accepted with the warnings."""
    if each.surface is None or each.refused is not None:
        return each
    standing = approved.with_text(each.standing, each.key, each.server.name, each.surface)
    if standing is each.standing:
        return each
    each = replace(each, standing=standing)
    open_warnings = bool(standing.attacks) and not each.warnings_approved
    if open_warnings and standing.state in ("first", "new"):
        how = f"what it tells the model looks like an attack. If you read it and it is none: {each.how_to_accept}"
        return replace(each, refused=how)
    grave = standing.attacks or any(row.severity == CRITICAL for row in standing.rows)
    return replace(each, accepted=each.named and not open_warnings if grave else each.accepted)


def _refuse_unknown(accepted: Accepted, found: Sequence[Found]) -> None:
    for name in accepted.names:
        if not any(name in (each.server.name, each.key) for each in found):
            raise PinwardenError("USAGE", f"no configured server is named {name[:120]!a}")


def _choose(files: Sequence[ConfigFile], approved: Approved) -> list[Found]:
    chosen: dict[str, Found] = {}
    refused: list[Found] = []
    for file in files:
        for server in file.servers:
            key = lock_entry.entry_key(server.name, lock_client(server.client))
            reason, standing = _why_not(server) or _loop(server, key, approved), approved.standing(server, key)
            if reason is None and key in chosen:
                same = fragment_of(server) == fragment_of(chosen[key].server)
                reason = None if same else f"another file configures {server.name!a} differently for the same client"
                if same and standing.state != "unchanged":
                    continue
            if reason is None:
                chosen[key] = Found(server=server, key=key, standing=standing)
            else:
                refused.append(Found(server=server, key=key, standing=standing, refused=reason))
    return [*chosen.values(), *refused]


def _why_not(server: ConfiguredServer) -> str | None:
    if server.target is None:
        return server.problem or "its entry cannot be used"
    if not server.name or len(server.name) > 200:
        return "its name is empty or too long"
    launched = parse_launch(server.target)
    if not (launched.via or launched).identity:
        return "its command does not say what to run"
    if any(map(is_secret_name, (server.name, *entry_names(server.entry)))):
        return "a secret stands where a name is expected, of the server, a member or a variable; names are written down"
    if _secret_in_the_open(server.entry):
        return "a secret stands in its arguments or address, where every process can read it; move it into a variable"
    return None


def _loop(server: ConfiguredServer, key: str, approved: Approved) -> str | None:
    """Why a command that only refers to the lock is not locked: an entry for it would stand for itself."""
    try:
        approved.entry_behind(server, key)
    except PinwardenError as err:
        return err.message
    return None


def _secret_in_the_open(entry: Any) -> bool:
    """Whether an argument or an address holds a secret: a lock must not, and neither should a command line."""
    for url in entry_urls(entry):
        place, _, query = url.partition("?")
        if MASK in mask_url(place) or any(looks_secret(name, value) for name, value in parse_qsl(query)):
            return True
    lines = [[_LITERAL.sub(r"\1", word) for word in words] for words in entry_command_lines(entry)]
    return any(mask_words(words) != words for words in lines)


def _ask_all(
    discovery: Discovery, options: ProbeOptions | None, on_progress: Callable[[int, int], None] | None
) -> list[Found]:
    found = discovery.found
    if options is None:
        return [replace(each, unasked=_NOT_AGREED) if each.refused is None else each for each in found]
    from pinwarden.project.project import load_policies
    from pinwarden.project.server_start import ask_all

    load_policies(discovery.project)  # one that cannot be read is an error here, and not one of each server
    wanted = [each for each in found if each.refused is None and not each.server.disabled]
    starts = {each.key: _start(discovery, each, options) for each in wanted}
    asked = {key: start for key, start in starts.items() if not isinstance(start, PinwardenError)}
    outcomes = ask_all(
        list(asked.values()),
        on_progress=(lambda step: on_progress(step.done, step.total)) if on_progress else None,
    )
    answers = dict(zip(asked, outcomes, strict=True))
    answers |= {key: start for key, start in starts.items() if isinstance(start, PinwardenError)}
    result: list[Found] = []
    for each in found:
        outcome = answers.get(each.key) if each.refused is None else None
        if isinstance(outcome, PinwardenError) and outcome.code == "SECRET_REPEATED":
            result.append(replace(each, refused=f"{outcome.message}; a lock must not hold it"))
        elif isinstance(outcome, PinwardenError):
            wanted_in_vain = None if outcome.code == "CONSENT_REQUIRED" else outcome
            result.append(replace(each, unasked=outcome.message, failure=wanted_in_vain))
        elif outcome is None:
            result.append(each if each.refused else replace(each, unasked="it is switched off"))
        elif outcome.digest is None:
            result.append(replace(each, refused=f"it cannot be digested: {outcome.problem}"))
        else:
            result.append(replace(each, surface=outcome))
    return result


def _start(discovery: Discovery, each: Found, options: ProbeOptions) -> PreparedProbe | PinwardenError:
    """How one server is started or contacted: from its verified bytes, if they are locked."""
    from pinwarden.project.server_start import prepare_probe

    if each.server.target is None:
        return PinwardenError("CONFIG_INVALID", f"its entry cannot be used: {each.server.problem}")
    try:
        entry = discovery.approved.entry(each.key)
        return prepare_probe(discovery.project, each.server.name, each.server.target, options, entry)
    except PinwardenError as err:
        return err


def _write(discovery: Discovery, found: Sequence[Found], approver: Approver, now: str) -> Lock:
    project = discovery.project
    folder = lock_store.surfaces_folder(project.lock)
    texts: dict[str, Approvable] = {}
    entries: list[lock_entry.Entry] = []
    for each in found:
        path = surface_path(each.key, folder=folder)
        if each.surface is not None:
            texts[each.key] = Approvable(
                server=each.server.name,
                surface=each.surface,
                warnings=each.standing.attacks,
                warnings_approved=each.warnings_approved,
            )
        extension = Extension(
            surface=None if each.surface is None else pin_surface(each.surface, path),
            approval=approval_of(replace(approver, how=_what_happened(each)), now, texts.get(each.key)),
            configured_in=ConfiguredIn(
                client=each.server.client,
                scope=each.server.scope,
                file=project.shown(each.server.path),
                answers=_answers(discovery.files, each.server),
            ),
            probed_release=_probed_release(discovery, each),
        )
        behind = discovery.approved.entry_behind(each.server, each.key)
        entries.append(locked_as(each.server, behind, extension, now))

    def change(old: Lock | None) -> lock_store.LockWrite:
        if old != discovery.lock:
            raise PinwardenError("LOCK_BUSY", f"{project.lock.name} changed while it was being looked at")
        made, files = in_own_files(old, [with_earlier_pins(old, entry) for entry in entries], texts)
        return lock_store.LockWrite(lock=relock(_without_refused(discovery, old, now), made, now), files=files)

    return lock_store.update(project.lock, change)


def _without_refused(discovery: Discovery, old: Lock | None, now: str) -> Lock | None:
    """The lock without what was accepted and written before its server was asked, and refused after that."""
    taken_back = _refused_later(discovery)
    if old is None or not taken_back:
        return old
    earlier = [entry for key in taken_back if (entry := discovery.approved.entry(key)) is not None]
    return relock(without(old, taken_back, now), earlier, now)


def _refused_later(discovery: Discovery) -> list[str]:
    return [each.key for each in discovery.found if each.refused is not None and each.key in discovery.saved]


def _probed_release(discovery: Discovery, each: Found) -> str | None:
    if each.surface is None or not isinstance(each.server.target, StdioTarget):
        return None
    return probed_release(discovery.project, each.server.target.command, each.surface)


def _answers(files: Sequence[ConfigFile], server: ConfiguredServer) -> dict[str, Any]:
    inputs = [each for file in files if file.path == server.path for each in file.inputs]
    return proposed_inputs(server, inputs)
