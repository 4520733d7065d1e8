"""``demo``: the whole chain, shown on two servers in a temporary folder."""

from __future__ import annotations

import os
import shutil
import sys
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec

from pinwarden.cli.commands import command


def _configure_demo(parser: ArgumentParser) -> None:
    parser.set_defaults(format="text")


@command(_configure_demo)
def demo(_args: Namespace) -> int:
    """Show in under a minute what Pinwarden does, with real commands on two small servers.

    They are found, pinned, verified, approved and enforced. Then one of them changes: CI fails, the gateway blocks the
    change, and a person decides. At last a server is published in a registry and installed. Servers and registry run on
    this machine, in a temporary folder. Your files are not touched, and no other machine is contacted.

    Examples:
      pinwarden demo
    """
    from pinwarden.artifacts.resolvers import find_uv
    from pinwarden.demo.story import play

    find_uv(os.environ)
    columns = max(60, min(100, shutil.get_terminal_size((100, 24)).columns))
    with_registry = all(find_spec(package) is not None for package in ("starlette", "uvicorn", "jinja2"))
    play(sys.stdout, with_registry=with_registry, columns=columns)
    if not with_registry:
        sys.stdout.write('\nTo see bundles and a registry too: pip install "pinwarden[registry]"\n')
    sys.stdout.write("\nOn your own servers: pinwarden setup\n")
    return 0
