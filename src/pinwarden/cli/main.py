"""Entry point. Does as little as possible before it knows what is asked: a command's module is imported on dispatch."""

from __future__ import annotations

import sys

from pinwarden.cli.streams import make_fit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Command -> one line for --help. The module of the same name in cli/commands holds the rest.
COMMANDS = {
    "init": "find the MCP servers that are configured here and lock them",
    "ci": "check that everything is as it was approved",
    "lock": "resolve a server and write it into the lock",
    "add": "lock a server and install it into client configurations",
    "remove": "take a server out of the lock and the configurations",
    "approve": "approve what a locked server tells the model now",
    "verify": "verify a registry's server before it is locked",
    "prove": "hash the bytes of locked servers and their dependencies, and pin them",
    "fetch": "bring the locked bytes onto this machine and build what they run in",
    "run": "start a locked server from verified bytes",
    "gateway": "serve all locked servers over HTTP, and let through only what was approved",
    "gateway token": "add, list and revoke the tokens of the gateway's clients",
    "enforce": "let clients start locked servers through pinwarden run",
    "sbom": "export the lock and all dependencies as CycloneDX or SPDX",
    "advisories": "look up locked versions in a local export of known vulnerabilities",
    "outdated": "list the locked servers that have a newer release",
    "update": "show what newer releases would change, and lock them",
    "init-ci": "write a workflow that runs pinwarden ci",
    "contract lock": "lock what a server of your own promises",
    "contract check": "check in CI that a server keeps its contract",
    "contract diff": "tell what changed between two contracts of a server, and how severe it is",
    "contract verify-signature": "tell whether a known key signed a contract",
    "contract tokens": "show what each tool costs in every conversation",
    "contract init": "set a project up to check its contract in CI",
    "contract explain": "tell what is known of a server's tools, and how",
    "inspect": "ask a server for everything it tells the model",
    "scan": "look for text that reads like an attack on the model",
    "diff": "tell what changed between two surfaces, and how much it matters",
    "canonicalize": "print the canonical form of JSON under a named profile",
    "digest": "print the digest of every tool in a listing",
    "cid": "print the content identifier of a document, manifest or blob",
    "lock digest": "print the digest of a whole lockfile",
    "lock sign": "sign a lockfile",
    "lock verify-signature": "tell whether enough known keys signed a lockfile",
    "keygen": "make an Ed25519 key pair for signing",
    "bundle pack": "pack a server's folder into a bundle, the same bytes on every machine",
    "bundle inspect": "tell what a bundle says of itself",
    "bundle verify": "check every byte of a bundle against its documents",
    "bundle push": "put a bundle into any OCI registry",
    "bundle pull": "fetch a bundle from any OCI registry",
    "sign": "sign a pointer, attestation or log document",
    "attest": "check a bundle and vouch for it",
    "bundle accept": "tell whether a bundle would be accepted for an install, from its documents",
    "publish": "publish a bundle in a registry",
    "registry serve": "serve a registry of bundles, with its transparency log",
    "registry export": "write a whole registry as files that any web server can serve",
    "registry namespace": "give a namespace to a key, or list the namespaces",
    "registry token": "make, list or revoke the tokens of publishers",
    "registry rotate-key": "give a registry a new key, which its log names and everybody who follows it takes over",
    "registry audit": "list what was asked of a registry, and what came of it",
    "registry point": "let a channel point to another version that is published",
    "registry yank": "take a version back, or bring it back",
    "registry attest": "send attestations to stand beside a published bundle",
    "registry keys": "change who may publish in a namespace, or give a part of it away",
    "log verify": "verify the whole transparency log of a registry",
    "log monitor": "report what is new in a registry's log, and prove that nothing old was changed",
    "trust add": "trust a registry, or somebody who attests",
    "trust remove": "trust somebody no longer, or revoke their key",
    "trust list": "list whom you trust",
    "install": "install a server from a registry of bundles, checked step by step",
    "policy init": "write a policy to start from",
    "policy check": "hold every locked server against the policy",
    "policy digest": "print the digest of the policy",
    "policy generate": "propose a policy for the gateway from what it observed",
    "review": "go through the changes that the gateway holds back",
    "review list": "list the changes that the gateway holds back",
    "review show": "show what approving a change would change",
    "review approve": "approve changes that the gateway holds back",
    "review reject": "reject changes that the gateway holds back",
    "review reopen": "take back decisions about changes",
    "audit verify": "verify that the audit log is what was written",
    "audit tail": "show the newest events of the audit log",
    "audit export": "export the audit log as JSON Lines",
    "explain": "tell what is locked about a server, and why it has its tier",
    "list": "list the locked servers",
    "doctor": "compare the clients' configurations with the lock",
    "secrets audit": "look for secrets that lie open in configurations",
    "completion": "print a script that completes pinwarden's commands in a shell",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    make_fit()
    if arguments in (["--version"], ["-V"]):
        from pinwarden import __version__

        sys.stdout.write(f"pinwarden {__version__}\n")
        return 0
    from pinwarden.cli.dispatch import dispatch

    return dispatch(arguments, COMMANDS)
