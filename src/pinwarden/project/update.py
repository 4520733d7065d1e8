"""Newer releases of what is locked: which there are, and what would change. Nothing changes without a yes."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pinwarden.clients.table import client_of
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import Record, replace
from pinwarden.core.report import COULD_NOT_CHECK, FindingKinds, Report, Row, kind_table, plural
from pinwarden.core.versions import compare_versions
from pinwarden.lock import lock_store
from pinwarden.lock.entry import Entry
from pinwarden.lock.extension import extension_of
from pinwarden.lock.locked_config import SOURCE, UNLISTED, configured_in, locked_config
from pinwarden.lock.locked_launch import is_enforced, locked_launch
from pinwarden.lock.server_entry import ServerEntry, from_value
from pinwarden.project.approvable import warning_facts
from pinwarden.project.lock import LockWriting, Wanted, lock_from_registry
from pinwarden.project.locked_servers import approve_command, not_locked

if TYPE_CHECKING:
    from pinwarden.clients.config import ConfiguredServer
    from pinwarden.clients.files import ConfigEdits
    from pinwarden.lock.lockfile import Lock
    from pinwarden.project.fetch_context import Workshop
    from pinwarden.project.newer_releases import Following, Release, Renewal
    from pinwarden.project.project import Policies, Project

NOTHING_TO_LOOK_UP = "there is nothing to look up"
_PASSING = ("generatedAt", "pinwarden", "serverVersion")  # that a release has another version is told anyway
_WARNED = (
    "text with scan warnings was not approved: read it, then pinwarden approve NAME, or repeat with --approve-warnings"
)
NOTHING_CHANGED = "nothing was changed; add --yes to update the lock and the clients' configurations"


UPDATE_KINDS: FindingKinds = kind_table(
    review=(
        ("selectedTarget_changes", "A newer release would install something else."),
        ("config_changes", "A newer release would be configured otherwise."),
        ("capabilityManifest_changes", "A newer release declares other secrets, hosts or transports."),
        ("tier_changes", "A newer release has another tier."),
    ),
    info=(
        ("newer_release", "There is a newer release than the locked one."),
        ("version_floats", "A configuration names no single release, so another may be started any day."),
    ),
)


class Newer(Record):
    """One entry, and the latest release that its registry has."""

    entry: Entry
    latest: ServerEntry | None
    problem: str | None = None

    @property
    def locked(self) -> str:
        """The release in the lock."""
        return self.entry.version

    @property
    def is_newer(self) -> bool:
        """Whether the latest release is not the locked one but a later one."""
        return self.latest is not None and compare_versions(self.latest.version or "", self.entry.version) > 0


def outdated(project: Project, shop: Workshop, *, offline: bool) -> Report:
    """The report of ``pinwarden outdated``."""
    looked = _look_up(project, [], shop, offline=offline)
    found = looked.entries
    rows = [_row(each) for each in found if each.is_newer or each.problem]
    behind = sum(each.is_newer for each in found)
    return Report(
        command="outdated",
        subject=project.lock.name,
        summary=looked.in_words(f"{behind} with a newer release"),
        exit_code=EXIT_UNCHECKED if looked.failed else EXIT_CLEAN,
        rows=(*rows, *looked.floating_rows),
        facts={
            "entries": [
                {
                    "name": each.entry.name,
                    "client": each.entry.client,
                    "locked": each.locked,
                    "latest": _version(each) if each.latest else None,
                    "outdated": each.is_newer,
                    "problem": each.problem,
                }
                for each in found
            ]
        },
    )


class Wish(Record):
    """What is to be updated, and whether somebody agreed to it."""

    names: Sequence[str]
    """In the lock; none means all."""
    agreed: bool
    shop: Workshop
    """Where releases are looked up, and the bytes that are pinned are looked at, unless that is offline."""


def update(project: Project, wish: Wish, policies: Policies, writing: LockWriting) -> Report:
    """Show what newer releases, newer dependencies and moved tags would change; write it if that was agreed to.

    1. Look up the newest releases.
    2. Say what they, and newer dependencies of the others, would change.
    3. Write what was agreed to, but nothing whose bytes are not what somebody says they are.
    """
    looked = _look_up(project, wish.names, wish.shop, offline=writing.offline)
    found = [each for each in looked.entries if each.is_newer]
    following = _following(looked, project, policies, writing)
    rows = tuple(row for each in found for row in _differences(each, following, writing.now))
    failed = tuple(_row(each) for each in looked.failed)
    renewed = _renewals(project, wish, found, writing)
    releases = tuple(_release_rows(wish, found, writing))
    bytes_rows = (*(row for each in renewed for row in each.rows), *releases)
    failed += tuple(row for row in bytes_rows if row.code == COULD_NOT_CHECK)
    failed = tuple({(row.name, row.message): row for row in failed}.values())  # each reason once
    rows += (*(row for row in bytes_rows if row.code != COULD_NOT_CHECK), *looked.floating_rows)
    bad = {row.name for row in releases if row.severity == "critical"}
    offered = [each for each in renewed if each.offered]
    refused = any(row.severity == "critical" for row in bytes_rows) or (bool(found or offered) and not wish.agreed)
    report = Report(
        command="update",
        subject=project.lock.name,
        summary=looked.in_words(f"{len(found)} with a newer release" if found else "each at its latest release"),
        exit_code=EXIT_REFUSED if refused else EXIT_UNCHECKED if failed else EXIT_CLEAN,
        rows=(*failed, *rows),
        notes=tuple(_untold(looked, renewed)),
        facts={
            "updates": [_update_facts(each) for each in found],
            "renewals": [each.entry.name for each in offered],
            "written": False,
            "changes": [{"code": row.code, "name": row.name, "message": row.message} for row in rows],
            "unchecked": [{"name": row.name, "message": row.message} for row in failed],
        },
    )
    if not wish.agreed:
        nothing = (NOTHING_CHANGED,) if found or offered else ()
        return replace(report, notes=(*report.notes, *nothing))
    good = [each for each in found if each.entry.name not in bad]
    left, warnings = _write_releases(project, good, wish, policies, writing, following)
    _write_renewals(project, offered, writing.now)
    lock = lock_store.read(project.lock)
    facts = {**report.facts, "written": lock != looked.lock}
    done = [each for each in good if each.entry.name not in {row.name for row in left}]
    report = _as_done(report, lock, done, offered)
    if not left and not warnings:
        return replace(report, facts=facts)
    facts["configs"] = [{"name": row.name, "message": row.message} for row in left]
    facts["warnings"] = warning_facts(warnings)
    notes = (*report.notes, *((_WARNED,) if warnings else ()))
    return replace(report, rows=(*report.rows, *left, *warnings), notes=notes, facts=facts, exit_code=EXIT_REFUSED)


def _as_done(report: Report, lock: Lock | None, done: Sequence[Newer | Release], renewed: Sequence[Renewal]) -> Report:
    """The report after it was written: what would change did, and what comes next is named."""
    if not done and not renewed:
        return report
    written = {each.entry.name for each in done}
    rows = tuple(replace(row, message=_done(row.message)) if row.name in written else row for row in report.rows)
    told = [f"{each.entry.name} updated to {_version(each)}" for each in done]
    told += [f"the dependencies of {each.entry.name} renewed" for each in renewed]
    summary = "; ".join((report.summary, *dict.fromkeys(told)))
    return replace(report, rows=rows, summary=summary, notes=(*report.notes, *_next_steps(lock, written)))


def _done(message: str) -> str:
    return message.replace(" would change", " changed").replace("its tier would be ", "its tier is ")


def _next_steps(lock: Lock | None, written: Collection[str]) -> Iterator[str]:
    """What an updated server still needs: its bytes pinned, and its text looked at."""
    steps: dict[str, None] = {}
    for entry in lock.entries if lock is not None else ():
        if entry.name not in written:
            continue
        extension = extension_of(entry)
        name = shlex.quote(entry.name[:120])
        prove = "" if extension is not None and extension.has_bytes else f"pinwarden prove {name}, then "
        approve = approve_command(entry, lock.entries if lock is not None else ())
        steps[f"next: {prove}{approve} shows what the new release tells the model"] = None
    yield from steps


def _update_facts(each: Newer | Release) -> dict[str, Any]:
    facts = {"name": each.entry.name, "client": each.entry.client, "from": each.locked, "to": _version(each)}
    if isinstance(each, Newer) or each.latest is None:
        return facts
    said = {"published_at": each.latest.published_at, "publisher": each.latest.publisher}
    return {**facts, "package": each.runs.identity, **{name: value for name, value in said.items() if value}}


def _untold(looked: _Looked, renewed: Sequence[Renewal]) -> Iterator[str]:
    """What was looked at beside registries, and what was not."""
    same = sum(not each.rows for each in renewed)
    if same:
        yield f"the pinned bytes of {plural(same, 'server')} are what they would be today, with all dependencies"
    if looked.unlisted:
        yield f"no releases are looked up of programs of this machine and addresses: {', '.join(looked.unlisted)}"


def _following(looked: _Looked, project: Project, policies: Policies, writing: LockWriting) -> Following | None:
    """What brings configurations up to newer releases of their packages, where a configuration names one."""
    if not looked.releases:
        return None
    from pinwarden.project.newer_releases import Following

    return Following(project, policies, writing)


def _write_releases(  # noqa: PLR0913, PLR0917  all that a release is locked with
    project: Project,
    found: Sequence[Newer | Release],
    wish: Wish,
    policies: Policies,
    writing: LockWriting,
    following: Following | None,
) -> tuple[list[Row], list[Row]]:
    """Bring each server up to its newer release, in the lock and for every client, or leave all of it as it was.

    Returns where that was not possible, and the scan warnings for which a text was not approved.

    What is not found here is not written: the bytes of some are not what anybody says they are.
    """
    if not found:
        return [], []
    from pinwarden.project.client_install import not_updated

    update = _Update(project, wish, policies, writing, following, found)
    left: list[Row] = []
    for name in dict.fromkeys(each.entry.name for each in found):
        try:
            update.server([each for each in found if each.entry.name == name])
        except PinwardenError as err:
            left.append(not_updated(name, f"{update.client}: {err.message}; nothing was changed"))
    return left, [*update.warnings, *(following.warnings if following is not None else ())]


class _Update:
    """Writes newer releases that were agreed to."""

    def __init__(  # noqa: PLR0913, PLR0917  all that a release is locked with
        self,
        project: Project,
        wish: Wish,
        policies: Policies,
        writing: LockWriting,
        following: Following | None,
        found: Sequence[Newer | Release],
    ) -> None:
        from pinwarden.project.client_install import Installed

        self._project, self._wish, self._policies, self._writing = project, wish, policies, writing
        self._following = following
        self._installed = Installed(project, [each.entry for each in found if isinstance(each, Newer)])
        self.warnings: list[Row] = []
        """Scan warnings for which the text of a new release was not approved."""
        self.client = ""
        """Whose entry is being written, for those who report what went wrong."""

    def server(self, releases: Sequence[Newer | Release]) -> None:
        """One server, for all of its clients: either all of it is written, or nothing is.

        1. Write the lock of every client.
        2. Pin the new bytes of those that are started through ``pinwarden run``.
        3. Write the clients' files. Whatever fails, the lock and the files are put back.
        """
        from pinwarden.clients.files import config_edits

        keys = [each.entry.key for each in releases]
        with lock_store.restored_on_error(self._project.lock, keys), config_edits() as edits:
            configured = [(each.entry, self._locked(each)) for each in releases]
            for entry, server in configured:
                if is_enforced(entry) and server is not None:
                    self._prove(entry)
            for entry, server in configured:
                if server is not None:
                    self._configure(entry, server, edits)

    def _locked(self, each: Newer | Release) -> ConfiguredServer | None:
        """Write the lock; the server as its client's file is to hold it, None if no file does."""
        self.client = each.entry.client
        if not isinstance(each, Newer):
            return self._following.lock(each) if self._following is not None else None
        self._installed.refuse_changed(each.entry.key)
        wanted = Wanted(
            name=each.entry.name,
            clients=(each.entry.client,),
            version=_version(each),
            scope="global" if each.entry.scope == "global" else "project",
            source=each.entry.source,
        )
        locked = lock_from_registry(self._project, wanted, self._policies, self._writing)
        self.warnings += locked.rows if locked.exit_code == EXIT_REFUSED else ()
        return self._installed.at_locked(each.entry.key)

    def _prove(self, entry: Entry) -> None:
        from pinwarden.project.prove import prove_entry

        self.client = entry.client
        if self._writing.offline:
            raise PinwardenError(
                "BYTES_NOT_LOCKED", "it is started through pinwarden run, and its new bytes cannot be fetched offline"
            )
        prove_entry(self._project, entry.key, self._wish.shop, self._writing.now)

    def _configure(self, entry: Entry, server: ConfiguredServer, edits: ConfigEdits) -> None:
        """Write a client's file. A server that is started through ``pinwarden run`` goes on being started so."""
        from pinwarden.project.client_install import locked_entry
        from pinwarden.project.enforce import Enforcing, enforce_entry

        self.client = entry.client
        if not is_enforced(entry):
            edits.exchange(server, server.entry)
            return
        how = Enforcing(project=self._project, servers=(), now=self._writing.now, edits=edits)
        enforce_entry(how, locked_entry(self._project, entry.key), server)


def _renewals(project: Project, wish: Wish, found: Sequence[Newer | Release], writing: LockWriting) -> list[Renewal]:
    """What the pinned bytes would be today; not of servers that get another release anyway."""
    if writing.offline:
        return []
    from pinwarden.project.newer_releases import renewals

    newer = frozenset(each.entry.name for each in found)
    return renewals(project, wish.names, wish.shop, writing.now, without=newer)


def _write_renewals(project: Project, offered: Sequence[Renewal], now: str) -> None:
    if not offered:
        return
    from pinwarden.project.newer_releases import write_renewal

    for renewal in offered:
        write_renewal(project, renewal, now)


def _release_rows(wish: Wish, found: Sequence[Newer | Release], writing: LockWriting) -> Iterator[Row]:
    """Who published the newer releases of servers whose bytes are pinned, each once."""
    if writing.offline:
        return
    from pinwarden.project.locked_servers import has_bytes
    from pinwarden.project.newer_releases import package_rows, release_rows

    told: set[str] = set()
    for each in found:
        if each.latest is None or not has_bytes(each.entry) or each.entry.name in told:
            continue
        told.add(each.entry.name)
        if isinstance(each, Newer):
            yield from release_rows(each.entry, each.latest, wish.shop, writing.now)
        else:
            yield from package_rows(each.entry, each.package, wish.shop, writing.now)


class _Looked(Record):
    """What the registries said, and of how many entries they can know."""

    lock: Lock
    servers: tuple[Newer, ...]
    """Those that a registry of servers was asked about."""
    releases: tuple[Release, ...]
    """Those that a configuration takes from a registry of packages."""
    wanted: int
    """All that were asked about."""
    unlisted: tuple[str, ...]
    """Names of configured servers that come from no registry."""

    @property
    def entries(self) -> tuple[Newer | Release, ...]:
        """All that have a locked release."""
        return (*self.servers, *(each for each in self.releases if not each.floats))

    @property
    def failed(self) -> tuple[Newer | Release, ...]:
        """Those that could not be looked up."""
        return tuple(each for each in self.entries if each.problem is not None)

    @property
    def floating_rows(self) -> tuple[Row, ...]:
        """What is told of those whose configuration names no release."""
        level = UPDATE_KINDS["version_floats"].severity
        return tuple(
            Row(
                code="version_floats", severity=level, entity="server", name=each.entry.name, path="", message=each.hint
            )
            for each in self.releases
            if each.floats
        )

    def in_words(self, outcome: str) -> str:
        """How many were looked up, and what came of it."""
        floating = len(self.releases) + len(self.servers) - len(self.entries)
        comes = "comes" if 1 in (self.wanted, len(self.entries)) else "come"
        known = f"{len(self.entries)} of {plural(self.wanted, 'entry', 'entries')} {comes} from a registry"
        known += f" at a locked version and {floating} at any" if floating else ""
        if not self.entries:
            return f"{known}; {NOTHING_TO_LOOK_UP}"
        if not self.failed:
            return f"{known}, {outcome}"
        answered = f", the others {outcome}" if len(self.failed) < len(self.entries) else ""
        return f"{known}, {len(self.failed)} could not be looked up{answered}"


def _look_up(project: Project, names: Sequence[str], shop: Workshop, *, offline: bool) -> _Looked:
    lock = lock_store.read(project.lock)
    if lock is None:
        raise PinwardenError("LOCK_MISSING", f"there is no {project.lock.name} here")
    unknown = [name for name in names if not any(entry.name == name for entry in lock.entries)]
    if unknown:
        raise not_locked(lock.entries, unknown[0])
    wanted = [entry for entry in lock.entries if not names or entry.name in names]
    configured = [entry for entry in wanted if entry.source == SOURCE]
    releases = _configured_releases(configured, shop)
    packaged = {each.entry.key for each in releases}
    return _Looked(
        lock=lock,
        servers=tuple(_listed(project, wanted, offline=offline)),
        releases=releases,
        wanted=len(wanted),
        unlisted=tuple(dict.fromkeys(entry.name for entry in configured if entry.key not in packaged)),
    )


def _listed(project: Project, wanted: Sequence[Entry], *, offline: bool) -> Iterator[Newer]:
    """What registries of servers have of entries that came from one."""
    registries = project.registries(offline=offline)
    for entry in wanted:
        if entry.source in UNLISTED:
            continue
        try:
            latest = from_value(registries.find(entry.name, None, entry.source))
        except PinwardenError as err:
            yield Newer(entry=entry, latest=None, problem=err.message)
            continue
        yield Newer(entry=entry, latest=latest)


def _configured_releases(configured: Sequence[Entry], shop: Workshop) -> tuple[Release, ...]:
    if not configured:
        return ()
    from pinwarden.project.newer_releases import releases_of

    return tuple(releases_of(configured, shop))


def _differences(each: Newer | Release, following: Following | None, now: str) -> list[Row]:
    """What the newer release says about itself that the locked one did not."""
    if isinstance(each, Newer):
        from pinwarden.lock.install_plan import install_plan

        if each.latest is None:
            return []
        return _plan_rows(each, install_plan(each.latest, each.entry.client, now=now))
    from pinwarden.project.client_install import not_updated

    try:
        fresh = following.fresh(each)[1].document if following is not None else each.entry.document
    except PinwardenError as err:
        return [_row(each), not_updated(each.entry.name, f"{each.entry.client}: {err.message}")]
    return _plan_rows(each, fresh)


def _plan_rows(each: Newer | Release, plan: Mapping[str, Any]) -> list[Row]:
    enforced = is_enforced(each.entry)
    old = {**each.entry.document, **({"config": _started_config(each.entry)} if enforced else {})}
    rows = [_row(each)]
    for member, what in (
        ("selectedTarget", "what is installed"),
        ("config", "what pinwarden run starts" if enforced else "the client configuration"),
        ("capabilityManifest", "secrets, hosts or transports"),
    ):
        before, after = _lasting(old.get(member)), _lasting(plan.get(member))
        if before != after:
            rows.append(
                Row(
                    code=f"{member}_changes",
                    severity=UPDATE_KINDS[f"{member}_changes"].severity,
                    entity="server",
                    name=each.entry.name,
                    path=f"/{member}",
                    message=f"{what} would change",
                    before=_text(before),
                    after=_text(after),
                )
            )
    before_tier, after_tier = old["trust"]["tier"], plan["trust"]["tier"]
    if before_tier != after_tier:
        message = f"its tier would be {after_tier} instead of {before_tier}"
        level = UPDATE_KINDS["tier_changes"].severity
        rows.append(
            Row(code="tier_changes", severity=level, entity="server", name=each.entry.name, path="", message=message)
        )
    return rows


def _started_config(entry: Entry) -> Any:
    """The configuration with the command that ``pinwarden run`` stands for, which goes on standing for the next one."""
    from pinwarden.clients.config import config_with
    from pinwarden.project.enforce import with_command

    where = configured_in(entry)
    client = client_of(where.client if where else entry.client)
    approved = locked_config(entry.key, entry.document).entry
    return config_with(client, entry.name, with_command(approved, client, locked_launch(entry).command))


def _row(each: Newer | Release) -> Row:
    if each.problem:
        code, level, message = COULD_NOT_CHECK, "review", each.problem
    else:
        code, level = "newer_release", UPDATE_KINDS["newer_release"].severity
        message = f"{each.locked} is locked for {each.entry.client}, {_version(each)} is the latest"
        message += "" if isinstance(each, Newer) else each.told
    return Row(code=code, severity=level, entity="server", name=each.entry.name, path="", message=message)


def _version(each: Newer | Release) -> str:
    return (each.latest.version if each.latest else None) or "?"


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _lasting(member) for name, member in value.items() if name not in _PASSING}
    return value


def _text(value: Any) -> str:
    from json import dumps

    return dumps(value, ensure_ascii=False, sort_keys=True)
