"""``pinwarden update`` as one decision per server: show what a newer release changes, ask, and write everything."""

from __future__ import annotations

import sys
from argparse import Namespace
from functools import partial
from typing import TYPE_CHECKING

from pinwarden.cli.fetch_arguments import DownloadOptions, open_fetch_context
from pinwarden.cli.questions import QUIT, ask, can_ask, quote_server
from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, EXIT_UNCHECKED, PinwardenError
from pinwarden.core.record import replace
from pinwarden.core.report import Report, Row
from pinwarden.core.text import plural, show_invisible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinwarden.cli.render.surface_text import Detail
    from pinwarden.project.guided_update import PackageUpdateContext, PreparedUpdate
    from pinwarden.project.lock import Approver, LockOptions
    from pinwarden.project.newer_releases import PackageRelease, ReleaseLookup
    from pinwarden.project.project import Project


_UNCHECKED_CODES = ("FETCH_", "PROBE_")


def is_guided(args: Namespace) -> bool:
    """Whether ``update`` handles one server after the other: on a terminal, or with ``--yes --allow-execute``.

    Never with ``--offline``, ``--plain-v2`` or ``--live``.
    """
    if args.offline or args.plain_v2 or args.live:
        return False
    return args.allow_execute if args.yes else args.format == "text" and can_ask()


class GuidedUpdate:
    """The dialog about the newer releases of one scope."""

    def __init__(self, args: Namespace, project: Project, lock_options: LockOptions, approver: Approver) -> None:
        self._args, self._project = args, project
        self._downloads = DownloadOptions(allow_private=args.allow_private)
        self._lock_options, self._approver = lock_options, approver
        self._updated: list[PackageRelease] = []
        self._failures: list[Row] = []
        self._skipped: list[str] = []
        self._unchecked = False

    def run(self, names: tuple[str, ...]) -> Report | None:
        """Decide on the newer releases of the named servers; None if no package has one."""
        from pinwarden.project.guided_update import PackageUpdateContext
        from pinwarden.project.newer_releases import look_up_releases
        from pinwarden.project.project import load_policies

        with open_fetch_context(self._downloads, self._project, "looking up releases") as fetch_context:
            lookup = look_up_releases(self._project, names, fetch_context, offline=False)
        newer = [release for release in lookup.packages if release.is_newer and not release.is_floating]
        if not newer:
            return None
        if not self._ask_to_start_servers(newer):
            self._skipped += [release.entry.name for release in newer]
            return self._build_report(lookup, newer)
        with open_fetch_context(self._downloads, self._project, "downloading and verifying") as fetch_context:
            context = PackageUpdateContext(
                project=self._project,
                policies=load_policies(self._project),
                lock_options=self._lock_options,
                fetch_context=fetch_context,
            )
            by_name: dict[str, list[PackageRelease]] = {}
            for release in newer:
                by_name.setdefault(release.entry.name, []).append(release)
            remaining = list(by_name)
            for name, releases in by_name.items():
                remaining.remove(name)
                if not self._update_server(context, releases):
                    self._skipped += [name, *remaining]
                    break
        return self._build_report(lookup, newer)

    def _ask_to_start_servers(self, newer: Sequence[PackageRelease]) -> bool:
        """Ask whether to download, verify and start the new releases. With ``--allow-execute``, return True at once."""
        if self._args.allow_execute:
            return True
        from pinwarden.project.newer_releases import latest_version

        names = dict.fromkeys(
            f"{release.entry.name} {release.locked} -> {latest_version(release)}{release.publication}"
            for release in newer
        )
        sys.stderr.write("".join(f"{show_invisible(line)}\n" for line in names))
        question = "Verify these releases and start them to read their tools?"
        return ask(question, ("yes", QUIT), "yes") == "yes"

    def _update_server(self, context: PackageUpdateContext, releases: Sequence[PackageRelease]) -> bool:
        """Decide on one server. False if the user quits."""
        from pinwarden.project.guided_update import commit_update, prepare_update

        name = releases[0].entry.name
        try:
            with prepare_update(context, releases) as prepared:
                answer = "yes" if self._args.yes else self._decide(prepared)
                if answer == "yes":
                    approver = self._approver
                    if not self._args.yes:  # everything was shown before the question
                        approver = replace(approver, approves_warnings=True)
                    commit_update(prepared, approver, self._lock_options.now)
                    self._updated += releases
                elif answer == "skip":
                    self._skipped.append(name)
                return answer != QUIT
        except PinwardenError as err:
            self._unchecked = self._unchecked or err.code.startswith(_UNCHECKED_CODES)
            self._failures.append(_build_failure(name, err))
            return True

    def _decide(self, prepared: PreparedUpdate) -> str:
        from pinwarden.cli.approvals import SKIPPED, ask_decision

        question, render = f"Update {quote_server(prepared.name)}?", partial(render_update, prepared)
        answer = ask_decision(question, render, suspicious=_is_risky(prepared), choices=("yes",)).answer
        return "skip" if answer == SKIPPED else answer

    def _build_report(self, lookup: ReleaseLookup, newer: Sequence[PackageRelease]) -> Report:
        from pinwarden.project.newer_releases import build_release_row, latest_version
        from pinwarden.project.update import release_to_json

        updated = dict.fromkeys(
            f"{release.entry.name} updated to {latest_version(release)}" for release in self._updated
        )
        parts = list(updated) or ["nothing was changed"]
        if self._skipped:
            parts.append(f"skipped: {', '.join(dict.fromkeys(self._skipped))}")
        failed_lookups = [build_release_row(release) for release in lookup.failed]
        rows = (*failed_lookups, *self._failures)
        exit_code = EXIT_CLEAN
        if self._skipped or (self._failures and not self._unchecked):
            exit_code = EXIT_REFUSED
        elif rows:
            exit_code = EXIT_UNCHECKED
        clients = len(self._updated)
        return Report(
            command="update",
            subject=self._project.lock.name,
            summary="; ".join(parts) + (f" ({plural(clients, 'entry', 'entries')})" if clients > 1 else ""),
            exit_code=exit_code,
            rows=rows,
            next_command="pinwarden ci" if self._updated else None,
            facts={
                "updates": [release_to_json(release) for release in newer],
                "renewals": [],
                "written": bool(self._updated),
                "changes": [],
                "unchecked": [{"name": row.name, "message": row.message} for row in failed_lookups],
                "configs": [{"name": row.name, "message": row.message} for row in self._failures],
            },
        )


def render_update(prepared: PreparedUpdate, detail: Detail = "short") -> str:
    """Render a newer release: verdict and text first, then parameters, dependencies, publisher and files."""
    from pinwarden.cli.render.surface_text import render_changes, render_surface, render_warnings
    from pinwarden.cli.render.text import wrap
    from pinwarden.project.newer_releases import latest_version

    release = prepared.releases[0]
    heading = f"{prepared.name}: {release.locked} -> {latest_version(release)}{release.publication}"
    parts = [f"\n{show_invisible(heading)}\n"]
    for update in prepared.surfaces:
        warnings = update.candidate.warnings
        if update.is_first:
            parts.append(render_surface(update.candidate.surface, name=prepared.name, warnings=warnings, detail=detail))
        else:
            parts.append(render_changes(update.changes, detail=detail))
            parts.append(render_warnings(warnings) if warnings else "")
    lines = [f"Dependencies: {'; '.join(prepared.dependencies) or 'unchanged'}"]
    lines += [f"Publisher: {row.message}" for row in prepared.published if row.severity != "info"]
    lines.append("The bytes of the release and its dependencies are verified.")
    return "".join((*parts, *(wrap(line) for line in lines))) + prepared.build_diff()


def _is_risky(prepared: PreparedUpdate) -> bool:
    return any(update.looks_like_attack for update in prepared.surfaces)


def _build_failure(name: str, err: PinwardenError) -> Row:
    from pinwarden.project.client_install import build_not_updated_row

    return build_not_updated_row(name, f"{err.message}; nothing was changed")
