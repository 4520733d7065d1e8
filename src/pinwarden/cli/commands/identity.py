"""``identity``: try the issuer whose access tokens and logins the gateway and the dashboard accept."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.project_arguments import add_project_arguments, project_from
from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace

if TYPE_CHECKING:
    from pinwarden.identity.issuer import Issuer
    from pinwarden.identity.settings import IdentitySettings

_MAX_TOKEN_FILE = 64 * 1024


def _add_settings_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--policy", metavar="FILE", help="file with [identity] (default: the project's pinwarden.toml)")


def _configure_identity_check(parser: ArgumentParser) -> None:
    _add_settings_argument(parser)
    parser.add_argument("--token-file", metavar="FILE", help="also verify the access token in this file; - for stdin")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_identity_check)
def identity_check(args: Namespace) -> int:
    """Fetch metadata and keys of the issuer in [identity], and verify an access token as the gateway would.

    Examples:
      pinwarden identity check
      pinwarden identity check --token-file token.txt
    """
    settings, issuer = _open(args)
    from pinwarden.identity.identity_report import check_identity

    token = "" if args.token_file is None else _read_token(args.token_file)
    return emit(check_identity(settings, issuer, token, time.time()), args.format)


def _configure_identity_login(parser: ArgumentParser) -> None:
    _add_settings_argument(parser)
    parser.add_argument("--port", type=int, default=0, help="port of the redirect URI (default: any free port)")
    parser.add_argument("--open", action="store_true", help="open the browser, instead of only printing the URL")
    add_project_arguments(parser)
    add_format_argument(parser)


@command(_configure_identity_login)
def identity_login(args: Namespace) -> int:
    """Log in at the issuer in [identity], and show which role you would have in the dashboard.

    The issuer must allow the redirect URI http://127.0.0.1/callback for the client. Nothing is stored.

    Examples:
      pinwarden identity login --open
    """
    settings, issuer = _open(args)
    from pinwarden.identity.identity_report import log_in

    def show_url(url: str) -> None:
        sys.stderr.write(f"Open this address in your browser to log in:\n{url}\n")
        sys.stderr.flush()
        if args.open:
            import webbrowser

            webbrowser.open(url)

    return emit(log_in(settings, issuer, show_url, time.time, args.port), args.format)


def _open(args: Namespace) -> tuple[IdentitySettings, Issuer]:
    try:
        from pinwarden.identity.identity_report import load_identity, open_issuer
    except ImportError as err:
        raise PinwardenError(
            "USAGE",
            f"identities need the package {err.name}, which is not installed",
            hint='Install it from a checkout of Pinwarden: pip install ".[identity]"',
        ) from err
    project = project_from(args)
    project = replace(project, policy=Path(args.policy) if args.policy else None)
    settings = load_identity(project.policy_file, project.variables)
    return settings, open_issuer(settings, project.variables)


def _read_token(name: str) -> str:
    from pinwarden.system.files import read_file

    if name == "-":
        data = sys.stdin.buffer.read(_MAX_TOKEN_FILE + 1)
        if len(data) > _MAX_TOKEN_FILE:
            raise PinwardenError("USAGE", f"the token on stdin is longer than {_MAX_TOKEN_FILE} bytes")
    else:
        data = read_file(Path(name), _MAX_TOKEN_FILE)
    return data.decode("latin-1").strip()
