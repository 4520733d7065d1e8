"""Give a registry a new key, which everybody who follows its log takes over.

The change is an entry of the log that both keys sign; the old key is refused from there on. Without --new-key a
key is made in the registry's folder, and takes the place of the old one there. Stop every replica before, start them
again with the new key, and make exports anew. A key that was stolen is not mended by this alone: those who have not
seen the change yet must hear of it by another way.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from pinwarden.cli.output import add_format_argument, emit
from pinwarden.cli.registry_arguments import add_operator_arguments, operated_registry, settings_of
from pinwarden.core.errors import PinwardenError


def configure(parser: ArgumentParser) -> None:
    """Name the arguments."""
    parser.add_argument("--new-key", metavar="FILE", help="the new private key (made in the registry's folder)")
    parser.add_argument("--new-key-env", metavar="NAME", help="the variable that holds the new key as PEM")
    parser.add_argument("--why", default="rotation", metavar="TEXT", help="the reason, which the log keeps (rotation)")
    add_operator_arguments(parser)
    add_format_argument(parser)


def run(args: Namespace) -> int:
    """Change the key and report."""
    from pinwarden.cli.key_arguments import signer_of
    from pinwarden.registry.key_rotation import rotate, rotation_report
    from pinwarden.registry.setup import next_key, take_next_key

    settings = settings_of(args)
    given = args.new_key or args.new_key_env
    if (args.new_key and args.new_key_env) or (bool(args.key or args.key_env) and not given):
        raise PinwardenError(
            "USAGE", "a key that lies elsewhere gives way to one that you name: --new-key or --new-key-env, not both"
        )
    if given and not (args.key or args.key_env):
        raise PinwardenError("USAGE", "with --new-key name the present key, too: --key or --key-env")
    with operated_registry(args, settings) as registry:
        new = signer_of(Namespace(key=args.new_key, key_env=args.new_key_env)) if given else next_key(settings.folder)
        _, change, count = rotate(registry, new, args.why)
        if not given:
            take_next_key(settings.folder)
        return emit(rotation_report(change, count), args.format)
