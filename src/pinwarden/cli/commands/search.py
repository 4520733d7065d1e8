"""``search``: find bundles in a registry."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from pinwarden.cli.commands import command
from pinwarden.cli.output import add_format_argument, emit
from pinwarden.core.errors import PinwardenError


def _configure_search(parser: ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="WORD", help="words of names, tools, prompts and descriptions")
    parser.add_argument(
        "--registry",
        metavar="URL",
        help="the registry's address or its name in your trust store (default: the registry in your trust store)",
    )
    parser.add_argument("--page", type=int, default=1, metavar="N", help="page of the results, 50 each (default: 1)")
    parser.add_argument("--allow-plain-http", action="store_true", help="allow an unencrypted http:// address")
    add_format_argument(parser)


@command(_configure_search)
def search(args: Namespace) -> int:
    """Find bundles in a registry by words of their names, tools, prompts and descriptions, the best match first.

    A bundle is found if it has all words. A word matches from its beginning: cal finds calendar. The registry chooses
    what it lists; pinwarden install verifies what you install.

    Examples:
      pinwarden search notes --registry http://127.0.0.1:8470
    """
    from pinwarden.bundle.trust_files import load_trust
    from pinwarden.cli.bundle_arguments import find_registry_location, find_trust_file, open_locations
    from pinwarden.registry.search_client import search_registry

    if args.page < 1:
        raise PinwardenError("USAGE", "--page must be a number from 1")
    location = find_registry_location(args, load_trust(find_trust_file()))
    with open_locations(args) as locations:
        report = search_registry(locations.open_registry(location), " ".join(args.words), args.page)
    if args.format == "text" and report.facts["tools"]:
        from pinwarden.cli.render.text import render_table

        rows = [
            (tool["tool"], tool["latest"] or "yanked", tool["description"] or "-") for tool in report.facts["tools"]
        ]
        sys.stdout.write(render_table(("NAME", "LATEST", "DESCRIPTION"), rows))
    return emit(report, args.format)
