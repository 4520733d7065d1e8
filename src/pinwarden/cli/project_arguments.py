"""The options that say which project, and who approves."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.flows.project import Project

if TYPE_CHECKING:
    from pinwarden.flows.lock.locking import Approver

_DEFAULT_LOCK = "mcp-lock.json"


def add_project_arguments(parser: ArgumentParser) -> None:
    """``--project`` and ``--file``."""
    parser.add_argument("--project", default=".", metavar="DIR", help="the project's folder (.)")
    parser.add_argument("--file", metavar="LOCK", help=f"the lockfile ({_DEFAULT_LOCK} in that folder)")


def add_approval_arguments(parser: ArgumentParser) -> None:
    """``--by`` and ``--why``."""
    parser.add_argument("--by", metavar="NAME", help="who approves (default: the user of this machine)")
    parser.add_argument("--why", default="reviewed", metavar="TEXT", help="why it is approved (reviewed)")


def project_of(args: Namespace) -> Project:
    """The project that the options name."""
    from pinwarden.adapters.clients import this_system

    root = Path(args.project)
    if not root.is_dir():
        raise PinwardenError("USAGE", f"{args.project[:200]!a} is not a folder")
    lock = Path(args.file) if args.file else root / _DEFAULT_LOCK
    return Project(root=root, lock=lock, home=Path.home(), system=this_system(), variables=os.environ)


def approver_of(args: Namespace) -> Approver:
    """Who approves, as the options or the environment say."""
    from pinwarden.flows.lock.locking import Approver

    by = args.by or os.environ.get("PINWARDEN_APPROVER") or os.environ.get("USER") or os.environ.get("USERNAME")
    if not by:
        raise PinwardenError("USAGE", "an approval needs a name", hint="Say who approves with --by NAME")
    return Approver(by=by, why=args.why)
