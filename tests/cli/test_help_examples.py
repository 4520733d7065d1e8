"""Every example in the help of a command runs as it is printed, without a network."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pinwarden.bundle.document import build_default_profile
from pinwarden.bundle.log_documents import Pointer, build_unsigned_pointers
from pinwarden.bundle.trust import Trust, TrustedKey
from pinwarden.cli.commands import COMMANDS, load_command
from pinwarden.core.keys import PublicKey
from pinwarden.core.signed_note import WitnessKey
from tests.cli.run import Outcome, pinwarden_in
from tests.cli.terminal import AtTerminal
from tests.cli.test_contract import SDK
from tests.conformance.vectors import vectors_dir
from tests.gateway.review_world import CHANGED, SEARCH, ReviewWorld
from tests.identity.issuer_server import identity_table, issuer_server
from tests.registry.replica import Replica
from tests.servers.acme_packages import acme_registries
from tests.skills.folder import PDF
from tests.support.bundle_world import BEFORE, trust_value
from tests.support.oidc_provider import SigningKey
from tests.support.registries import docker_registry, needs_registry

REPOSITORY = Path(__file__).resolve().parents[2]
NOTES_SERVER = (REPOSITORY / "examples" / "notes_server.py").read_text()
REGISTRY_URL = "https://registry.example.org"
OCI_HOST = "registry.example.org"
NEEDS_MORE = (
    "pinwarden bundle push",
    "pinwarden bundle pull",
    "pinwarden registry serve",
    "pinwarden dashboard",
    "pinwarden witness serve",
    "pinwarden approve",
    "pinwarden setup",
    "pinwarden demo",
    "pinwarden identity login",
    "pinwarden alerts test",
    "pinwarden fleet join",
    "pinwarden fleet sync",
    "pinwarden remote connect",
    "pinwarden census run fleet",
)
"""Examples that need an OCI registry, a login, a fleet or a terminal, run until they are stopped, or take long.

Each has its own test.
"""


def examples(name: str) -> list[str]:
    lines = load_command(name).description.replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if line.startswith("  pinwarden ")]


def family(name: str) -> str:
    return load_command(name).run.__module__.rpartition(".")[2]


FAMILIES = sorted({family(name) for name in COMMANDS})


class Reader:
    """A project folder with what examples mention, and the command line in it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.home = folder / "project", folder / "home"
        self.variables = {
            "HOME": str(self.home),
            "PINWARDEN_APPROVER": "reader",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self.served: dict[str, str] = {}  # what stands in examples for something of a live registry
        self.home.mkdir()
        (self.root / ".git").mkdir(parents=True)
        for project in (self.root, self.root / "services" / "search", self.root / "services" / "mail"):
            project.mkdir(parents=True, exist_ok=True)
            (project / "notes_server.py").write_text(NOTES_SERVER)
            notes = {"command": "python3", "args": [str(project / "notes_server.py")]}
            (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": notes}}))
            self.run("init", "--allow-execute", "--project", str(project))
        for side in ("before.json", "after.json"):
            self.run("inspect", "notes", "--allow-execute", "--output", side)
        surface = json.loads((self.root / "before.json").read_bytes())
        (self.root / "tools.json").write_text(json.dumps(surface["tools"]))
        (self.root / "osv-export").mkdir()
        record = {"id": "X-1", "modified": "2026-01-01T00:00:00Z", "affected": []}
        (self.root / "osv-export" / "X-1.json").write_text(json.dumps(record))
        self.run("keygen", "release.pem")
        destination = '[[destination]]\nname = "a"\nkind = "slack"\nurl = "https://hooks.example.org/"\n'
        (self.root / "alerts.toml").write_text(destination)

    def run(self, *arguments: str) -> Outcome:
        outcome = pinwarden_in({**os.environ, **self.variables}, *arguments, cwd=self.root)
        assert outcome.code in (0, 1), f"{arguments}\n{outcome.out}{outcome.err}"
        assert "Traceback" not in outcome.err, outcome.err
        return outcome

    def words(self, line: str) -> list[str]:
        """The arguments of an example."""
        for shown, real in self.served.items():
            line = line.replace(shown, real)
        return shlex.split(line.partition(" > ")[0])[1:]

    def pack(self) -> None:
        """The bundle of a server, and an attestation for it."""
        (self.root / "notes").mkdir()
        shutil.copy(REPOSITORY / "examples" / "notes-bundle" / "server.json", self.root / "notes")
        (self.root / "notes" / "notes_server.py").write_text(NOTES_SERVER)
        (self.root / "notes" / "tests").mkdir()
        (self.root / "notes" / "tests" / "test_notes.py").write_text("")
        self.run("bundle", "pack", "notes")
        attest = ("--key", "release.pem", "--role", "maintainer", "--output", "notes.attestation.json")
        self.run("attest", "acme.notes-1.0.0.car", *attest)

    def publish(self, stack: ExitStack, *serve: str, again: bool = False) -> Replica:
        """A registry with the bundle in it, and its export. ``again``: the bundle is left for an example to publish."""
        self.pack()
        replica = Replica("--data", str(self.root / "registry-data"), *serve, env=self.variables)
        stack.callback(replica.kill)
        data = ("--data", "registry-data")
        self.run("registry", "namespace", "add", "acme", "--owner", "release.pem.pub", *data)
        self.variables["PINWARDEN_REGISTRY_TOKEN"] = self.run("registry", "token", "add", "acme", *data).out.strip()
        where = ("--registry", replica.url, "--allow-plain-http")
        if not again:
            sent = ("--attestation", "notes.attestation.json")
            assert self.run("publish", "acme.notes-1.0.0.car", "--key", "release.pem", *sent, *where).code == 0
        self.run("registry", "export", "export", *data)
        return replica


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def _plain(reader: Reader, _: ExitStack) -> None:
    del reader


def _skills(reader: Reader, _: ExitStack) -> None:
    """A skill and instructions in the project, locked."""
    shutil.copytree(REPOSITORY / "examples" / "skills" / "pdf-forms", reader.root / ".claude" / "skills" / "pdf-forms")
    (reader.root / "AGENTS.md").write_text("Run the tests.\n")
    reader.run("approve", "pdf-forms", "AGENTS.md", "--yes")


def _registry_cache(reader: Reader, _: ExitStack) -> None:
    shutil.copytree(vectors_dir() / "toolpin" / "dot-toolpin", reader.root / ".toolpin")
    cache = reader.root / ".toolpin" / "registry-cache.json"
    cache.write_text(cache.read_text().replace("io.github.acme/npm-notes", "io.github.acme/notes"))


def _bundle(reader: Reader, _: ExitStack) -> None:
    """A bundle with an attestation, a registry's pointer to it, and files that trust both."""
    reader.pack()
    bundle = json.loads(reader.run("bundle", "inspect", "acme.notes-1.0.0.car", "--format", "json").out)
    row = Pointer(
        tool="acme.notes",
        channel="stable",
        root_cid=bundle["root_cid"],
        descriptor_cid=bundle["descriptor_cid"],
        cid_profile=build_default_profile(),
        updated_at_utc=BEFORE,
    )
    (reader.root / "pointer.json").write_text(
        json.dumps(build_unsigned_pointers("acme", "registry@acme", BEFORE, [row]))
    )
    reader.run("sign", "pointer.json", "--key", "release.pem")
    key = PublicKey.parse((reader.root / "release.pem.pub").read_text().strip())
    trust = Trust(
        registry_keys=(TrustedKey(key=key, roles=("registry",)),),
        known_keys=(TrustedKey(key=key, roles=("maintainer", "verifier")),),
    )
    (reader.root / "trust.json").write_text(json.dumps(trust_value(trust)))
    (reader.root / "policy.json").write_text('{"filesystem": "read_only"}')
    skill = reader.root / ".claude" / "skills" / "pdf"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(PDF)


def _contract(reader: Reader, _: ExitStack) -> None:
    (reader.root / "src").mkdir()
    (reader.root / "src" / "server.py").write_text(SDK)
    (reader.root / "dist").mkdir(exist_ok=True)
    (reader.root / "dist" / "server.js").write_text("")
    reader.run("contract", "lock", "--server", "src/server.py", "--sign", "release.pem", "--lock", "signed.lock")


def _packages(reader: Reader, stack: ExitStack) -> None:
    """Locked packages, and registries that have them."""
    _registry_cache(reader, stack)
    wheels = reader.root / "wheels"
    wheels.mkdir()
    reader.variables |= stack.enter_context(acme_registries(wheels)).variables
    reader.variables["PINWARDEN_STORE"] = str(reader.home / "store")
    _contract_of_notes(reader)
    (reader.root / "mcp-lock.json").unlink()
    notes = {"command": "npx", "args": ["-y", "@acme/notes@1.0.0"]}
    (reader.root / ".mcp.json").write_text(json.dumps({"mcpServers": {"notes": notes}}))
    reader.run("init")


def _built(reader: Reader, stack: ExitStack) -> None:
    _packages(reader, stack)
    for step in ("prove", "fetch"):
        assert reader.run(step).code == 0


def _contract_of_notes(reader: Reader) -> None:
    (reader.root / "src").mkdir()
    (reader.root / "src" / "server.py").write_text(NOTES_SERVER)
    reader.run("contract", "lock", "--command", "--", "python3", "src/server.py")


def _install(reader: Reader, stack: ExitStack) -> None:
    reader.publish(stack)
    reader.run("trust", "add", "export/registry.json", "--role", "registry")
    reader.run("trust", "add", "release.pem.pub", "--role", "maintainer", "--role", "verifier")


def _operator(reader: Reader, stack: ExitStack) -> None:
    """A registry, a copy of its key, and what a monitor has seen of its log."""
    reader.publish(stack)
    shutil.copy(reader.root / "registry-data" / "registry.key", reader.root)
    reader.run("log", "monitor", "export", "--state", "monitor.json")


def _search(reader: Reader, stack: ExitStack) -> None:
    reader.served["http://127.0.0.1:8470"] = reader.publish(stack).url


def _witness(reader: Reader, stack: ExitStack) -> None:
    """A registry that knows the witness."""
    reader.run("keygen", "witness.pem")
    key = PublicKey.parse((reader.root / "witness.pem.pub").read_text().strip())
    replica = reader.publish(stack, "--witness", str(WitnessKey(name="witness.example", key=key)))
    reader.served |= {REGISTRY_URL: replica.url, "VKEY": replica.checkpoint_key}


def _identity(reader: Reader, stack: ExitStack) -> None:
    """An issuer, and a token of it."""
    server, key = stack.enter_context(issuer_server()), SigningKey("k1")
    server.publish(key)
    (reader.root / "pinwarden.toml").write_text(identity_table(server.url))
    now = int(time.time())
    claims = {"iss": server.url, "sub": "alice", "aud": "http://127.0.0.1:8642/mcp", "iat": now, "exp": now + 3600}
    (reader.root / "token.txt").write_text(key.sign(claims))


def _policy(reader: Reader, _: ExitStack) -> None:
    """A policy to propose, and a recorded call."""
    reader.run("policy", "init", "--recommended")
    (reader.root / "pinwarden.toml").rename(reader.root / "proposed.toml")
    reader.run("run", "--name", "notes", "--", "python3", "notes_server.py")


PREPARED: dict[str, Callable[[Reader, ExitStack], object]] = {
    "artifacts": _packages,
    "bundle": _bundle,
    "contract": _contract,
    "digest": _plain,
    "gateway_backup": lambda reader, _: reader.run("gateway", "token", "add", "laptop"),
    "identity": _identity,
    "install": _install,
    "lock": _registry_cache,
    "operator": _operator,
    "policy": _policy,
    "registry": lambda reader, stack: reader.publish(stack),
    "run": _built,
    "scan": _skills,
    "search": _search,
    "signature": lambda reader, _: reader.pack(),
    "trust": lambda reader, stack: reader.publish(stack),
    "witness": _witness,
}
OFFLINE = ("pinwarden lock io", "pinwarden add", "pinwarden update", "pinwarden outdated")


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("audit", "publish", "review")])
def test_the_examples_of_a_family_run(name: str, tmp_path: Path, stack: ExitStack) -> None:
    reader = Reader(tmp_path)
    PREPARED.get(name, _plain)(reader, stack)
    for command in (command for command in COMMANDS if family(command) == name):
        for line in examples(command):
            if not line.startswith(NEEDS_MORE):
                offline = f"{line} --offline" if line.startswith(OFFLINE) else line
                reader.run(*reader.words(offline))


@needs_registry
def test_the_examples_with_an_oci_registry_run(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.pack()
    with docker_registry(tmp_path) as registry:
        for line in (*examples("bundle push"), *examples("bundle pull")):
            assert OCI_HOST in line
            done = reader.run(*shlex.split(line.replace(OCI_HOST, registry.host))[1:])
            assert done.code == 0, f"{line}\n{done.out}{done.err}"


@pytest.mark.parametrize("name", ["registry serve", "witness serve"])
def test_the_example_of_a_server_serves(name: str, tmp_path: Path, stack: ExitStack) -> None:
    reader = Reader(tmp_path)
    if name == "witness serve":
        _witness(reader, stack)
    (line,) = examples(name)
    command = [sys.executable, "-m", "pinwarden", *reader.words(line)]
    environment = {**os.environ, **reader.variables}
    with subprocess.Popen(command, cwd=reader.root, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            process.terminate()
            process.wait(60)
        finally:
            process.kill()


def test_the_examples_of_approve_ask_on_a_terminal(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    for line in examples("approve"):
        if "--yes" in line:
            assert reader.run(*shlex.split(line)[1:]).code == 0, line
            continue
        environment = {**os.environ, **reader.variables}
        with AtTerminal(*shlex.split(line)[1:], cwd=reader.root, env=environment) as terminal:
            assert "Start 'notes' (python3 " in " ".join(terminal.until("(Enter = yes): ").split())
            terminal.types("q\n")
            assert terminal.ends() == 1, line


def test_the_examples_of_publishers_run_against_a_registry(tmp_path: Path, stack: ExitStack) -> None:
    reader = Reader(tmp_path)
    replica = reader.publish(stack, again=True)
    description = reader.root / "notes" / "server.json"
    description.write_text(description.read_text().replace("1.0.0", "1.1.0"))
    reader.run("bundle", "pack", "notes")
    newer = ("--channel", "beta", "--key", "release.pem", "--registry", replica.url, "--allow-plain-http")
    assert reader.run("publish", "acme.notes-1.1.0.car", *newer).code == 0
    reader.run("keygen", "next.pem")
    recovery = ("--to", "next.pem.pub", "--reason", "key lost", "--data", "registry-data")
    assert reader.run("registry", "recover", "start", "acme", *recovery).code == 0
    for command in (command for command in COMMANDS if family(command) == "publish"):
        for line in examples(command):
            assert REGISTRY_URL in line
            done = reader.run(*shlex.split(line.replace(REGISTRY_URL, replica.url))[1:], "--allow-plain-http")
            assert done.code == 0, f"{line}\n{done.out}{done.err}"


def test_the_examples_about_blocked_changes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    world = ReviewWorld(tmp_path, monkeypatch, capfd)
    world.lock_server(SEARCH)
    (change,) = world.serve(CHANGED)
    for line in examples("review"):
        with AtTerminal(*shlex.split(line)[1:], cwd=world.root, env=dict(os.environ)) as terminal:
            terminal.until("[q]uit")
            terminal.types("q\n")
            assert terminal.ends() == 0, line
    order = ("review list", "review show", "review reject", "review reopen", "review approve", "audit tail")
    for command in (*order, "audit verify", "audit export"):
        if command == "audit verify":
            world.run("audit", "export", "--output", "audit.jsonl")
        for line in examples(command):
            outcome = world.run(*shlex.split(line.replace("NAME", change))[1:])
            assert outcome.code in (0, 1), f"{line}\n{outcome.out}{outcome.err}"


def test_every_command_has_an_example() -> None:
    assert [name for name in COMMANDS if not examples(name)] == []


def test_every_option_of_every_command_has_help() -> None:
    from pinwarden.cli.grammar import read_grammar

    silent = [
        f"{command.name} {argument.names}"
        for command in read_grammar(COMMANDS)
        for argument in (*command.options, *command.positionals)
        if not argument.help
    ]
    assert silent == []
