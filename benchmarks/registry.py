"""The registry: the cost of an append as the log grows, publishing, search, and reading compared with nginx."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks.measure import Goal, compare, table
from pinwarden.bundle import bundle_documents as manifest_document
from pinwarden.bundle.bundle_archive import build_archive, build_manifest_entry
from pinwarden.bundle.bundle_documents import CAR_MEDIA_TYPE, BundleDescriptor, SecurityPolicy, descriptor_to_json
from pinwarden.bundle.document import add_signature, build_default_profile, encode_document
from pinwarden.bundle.source_tree import SourceFile
from pinwarden.core.digest import document_cid, manifest_root_cid
from pinwarden.core.keys import PrivateKey
from pinwarden.core.record import replace
from pinwarden.core.signed_note import Checkpoint
from pinwarden.registry import access, registry_documents
from pinwarden.registry.access import authenticate
from pinwarden.registry.archive_store import FolderArchiveStore
from pinwarden.registry.export import export_registry
from pinwarden.registry.log_writer import PointerChange, append_pointer_changes
from pinwarden.registry.publish import publish
from pinwarden.registry.registry import Registry, RegistryLimits, RegistrySettings, open_registry
from pinwarden.registry.search import PAGE_SIZE, search_to_json
from pinwarden.registry.search_terms import list_bundle_terms
from pinwarden.registry.store import catalog, pointer_log
from pinwarden.registry.store.catalog import Package
from pinwarden.system.clock import now
from pinwarden.system.database import Schema, open_database
from pinwarden.system.key_files import create_key_file

KEY = PrivateKey.from_seed(b"b" * 32)
SIZES = (1, 1_000, 100_000)
APPENDS = 40
MAX_GROWTH = 1.3
PUBLISHES = 20
MAX_PUBLISH_RATIO = 4.0
MIN_READ_RATIO = {"an immutable blob": 0.15, "a checkpoint from the database": 0.05}
FILE_BYTES = 20_000
SEARCHED = 20_000
SEARCHES = 3
QUERY = "word3 word70"
MAX_SEARCH_RATIO = 3.0
_COUNTER = count()


def appending_report() -> str:
    """The same append to logs of three lengths. Each run is several transactions, with all their signatures."""
    with TemporaryDirectory() as folder:
        runs: dict[str, Callable[[], object]] = {}
        for size in SIZES:
            registry = _registry(Path(folder) / str(size))
            _fill(registry, size)
            runs[f"{size} entries"] = _appending(registry)
        rows = compare(runs, baseline="1 entries", rounds=9)
    rates = ", ".join(f"{row.name}: {APPENDS * 1e6 / row.microseconds:.0f}/s" for row in rows)
    goals = [
        Goal(name=f"{size} entries", against="1 entries", at_most=MAX_GROWTH) for size in SIZES if size != SIZES[0]
    ]
    return table(f"Appending an event to the log ({rates})", rows, APPENDS, goals)


def _appending(registry: Registry) -> Callable[[], object]:
    def run() -> None:
        for _ in range(APPENDS):
            with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as step:
                append_pointer_changes(
                    step, registry, [PointerChange(tool="acme.notes", channel="stable", version=None, reason="bench")]
                )

    return run


def _fill(registry: Registry, size: int) -> None:
    """Grow the log to ``size`` entries, without signing each entry."""
    with registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as step:
        head = pointer_log.load_head(step)
        assert head is not None
        edge = head.edge
        for number in range(size):
            edge = pointer_log.append_entry(step, edge, f"acme.t{number % 100}", "stable", b"x" * 900)
        note = Checkpoint(origin=registry.identity.log_id, size=edge.size, root=edge.root).note()
        pointer_log.move_head(step, head.edge, edge, bytes(note.sign(registry.identity.log_id, KEY)))


def publishing_report() -> str:
    """Publishing, compared with minimal durable writes: the archive in a file, and a row in a database."""
    with TemporaryDirectory() as folder:
        registry = _registry(Path(folder) / "registry")
        access.add_namespace(registry, "acme", KEY.public_key.did)
        token = str(access.add_token(registry, "acme", "", 1).facts["token"])
        schema = Schema(name="floor", migrations=("CREATE TABLE floor (id BIGINT PRIMARY KEY, body BYTEA NOT NULL);",))
        floor = open_database(Path(folder) / "floor.sqlite", schema)
        blobs = FolderArchiveStore(Path(folder) / "floor")

        def publish_bundles() -> None:
            for _ in range(PUBLISHES):
                _publish(registry, token)

        def write_minimum() -> None:
            for _ in range(PUBLISHES):
                bundle = _bundle(next(_COUNTER))
                blobs.put(bundle.archive)
                with floor.transaction() as step:
                    step.run("INSERT INTO floor (id, body) VALUES (?, ?)", (next(_COUNTER), bundle.archive[:1000]))

        runs: dict[str, Callable[[], object]] = {
            "a file and a row": write_minimum,
            "pinwarden publish": publish_bundles,
        }
        rows = compare(runs, baseline="a file and a row", rounds=7)
        floor.close()
        registry.database.close()
    rate = next(PUBLISHES * 1e6 / row.microseconds for row in rows if row.name == "pinwarden publish")
    goal = Goal(name="pinwarden publish", against="a file and a row", at_most=MAX_PUBLISH_RATIO)
    return table(f"Publishing a bundle of {FILE_BYTES} bytes ({rate:.0f}/s)", rows, PUBLISHES, [goal])


class _MemoryBundle:
    """A bundle in memory."""

    def __init__(self, descriptor: dict[str, object], manifest: dict[str, object], archive: bytes) -> None:
        self.descriptor, self.manifest, self.archive = descriptor, manifest, archive


def _bundle(number: int) -> _MemoryBundle:
    files = [SourceFile(path="main.py", data=b"# %d\n" % number + b"x" * FILE_BYTES)]
    unlinked = manifest_document.build_unlinked_manifest(build_manifest_entry(file) for file in files)
    root = manifest_root_cid(unlinked)
    archive = build_archive(CAR_MEDIA_TYPE, unlinked, root, files)
    descriptor = descriptor_to_json(
        BundleDescriptor(
            name=f"acme.t{number % 50}",
            display_name="bench",
            version=f"1.0.{number}",
            description="bench",
            license="MIT",
            root_cid=str(root),
            cid_profile=build_default_profile(),
            media_type=CAR_MEDIA_TYPE,
            size_bytes=len(archive),
            runtime="python",
            target="main.py",
            policy=SecurityPolicy(),
        )
    )
    linked = manifest_document.link_manifest(unlinked, str(document_cid(descriptor)))
    return _MemoryBundle(descriptor, linked, archive)


def _publish(registry: Registry, token: str) -> str:
    number = next(_COUNTER)
    bundle = _bundle(number)
    archive_cid = registry.blobs.put(bundle.archive)
    body = {
        "tool": f"acme.t{number % 50}",
        "version": f"1.0.{number}",
        "channel": "stable",
        "root_cid": bundle.manifest["root_cid"],
        "descriptor_cid": bundle.manifest["descriptor_cid"],
        "archive_cid": archive_cid,
    }
    value = registry_documents.build_unsigned_statement(
        registry.identity.log_id, registry_documents.PUBLISH, body, now(), str(number)
    )
    request = {
        "statement": add_signature(value, registry_documents.STATEMENT_SIGNED_FIELDS, KEY),
        "descriptor": bundle.descriptor,
        "manifest": bundle.manifest,
        "attestations": [],
    }
    publish(registry, authenticate(registry, token, "publish"), encode_document(request))
    return archive_cid


def reading_report() -> str:
    """Requests per second of the live registry, compared with nginx serving the static export."""
    nginx, wrk = shutil.which("nginx"), shutil.which("wrk")
    if nginx is None or wrk is None:
        return "Reading: nginx or wrk is not installed (tools/system-packages.sh nginx-light wrk): NOT MET"
    with TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)  # for nginx's worker, which is another user
        registry = _registry(root / "registry")
        access.add_namespace(registry, "acme", KEY.public_key.did)
        token = str(access.add_token(registry, "acme", "", 1).facts["token"])
        cids = [_publish(registry, token) for _ in range(20)]
        export_registry(registry, root / "export")
        registry.database.close()
        paths = dict(zip(MIN_READ_RATIO, (f"blobs/{cids[0]}", "log/checkpoint"), strict=True))
        with _start_registry(root) as live, _nginx(root, nginx) as static:
            lines = [_compare_reads(wrk, name, f"{live}{path}", f"{static}{path}") for name, path in paths.items()]
    return "\n".join(["Reading (requests per second, 8 connections)", *lines])


def _compare_reads(wrk: str, name: str, live: str, static: str) -> str:
    rates: dict[str, list[float]] = {live: [], static: []}
    for _ in range(5):
        for url, url_rates in rates.items():
            url_rates.append(_rate(wrk, url))
    ratio = statistics.median(a / b for a, b in zip(rates[live], rates[static], strict=True))
    figures = f"{statistics.median(rates[live]):.0f}/s, nginx {statistics.median(rates[static]):.0f}/s"
    minimum = MIN_READ_RATIO[name]
    met = "met" if ratio >= minimum else "NOT MET"
    return f"  goal: {name}: {ratio:.2f}x of nginx (at least {minimum:g}x): {met} ({figures})"


def _rate(wrk: str, url: str) -> float:
    done = subprocess.run([wrk, "-t1", "-c8", "-d2s", url], capture_output=True, text=True, check=True)
    match = re.search(r"Requests/sec:\s+([0-9.]+)", done.stdout)
    if match is None or "Non-2xx" in done.stdout:
        raise AssertionError(done.stdout)
    return float(match[1])


@contextmanager
def _start_registry(root: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "pinwarden", "registry", "serve", "--port", "0", "--data", str(root / "registry")]
    create_key_file(root / "registry" / "registry.key", KEY)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def _nginx(root: Path, program: str) -> Iterator[str]:
    settings = root / "nginx.conf"
    address = f"unix:{root}/nginx.sock"
    port = _free_port()
    settings.write_text(
        f"worker_processes 1; daemon off; pid {root}/nginx.pid; error_log {root}/nginx.log;\n"
        f"{'user root;' if os.geteuid() == 0 else ''}\n"
        "events { worker_connections 64; }\n"
        f"http {{ access_log off; sendfile on; keepalive_requests 1000000; client_body_temp_path {root}/t;\n"
        f"proxy_temp_path {root}/t; fastcgi_temp_path {root}/t; uwsgi_temp_path {root}/t; scgi_temp_path {root}/t;\n"
        f"server {{ listen 127.0.0.1:{port}; listen {address}; root {root}/export; }} }}\n"
    )
    with subprocess.Popen([program, "-c", str(settings)]) as process:
        try:
            _wait_for(root / "nginx.sock")
            yield f"http://127.0.0.1:{port}/"
        finally:
            process.terminate()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_for(path: Path) -> None:
    for _ in range(200):
        if path.exists():
            return
        time.sleep(0.02)
    raise AssertionError("nginx did not start")


def _registry(folder: Path) -> Registry:
    limits = replace(RegistryLimits(), requests_per_hour=10**9, bytes_per_hour=10**12)
    return open_registry(RegistrySettings(folder=folder, probing="never", limits=limits), KEY)


def searching_report() -> str:
    """A search for two words among 20,000 bundles, compared with its bare SQL, and with SQLite's FTS5 as a peer."""
    with TemporaryDirectory() as folder:
        registry = _registry(Path(folder) / "registry")
        _fill_catalog(registry, SEARCHED)
        database = sqlite3.connect(Path(folder) / "registry" / "registry.sqlite")
        database.execute("CREATE VIRTUAL TABLE peer USING fts5 (tool, words)")
        sql = "INSERT INTO peer SELECT tool, GROUP_CONCAT(CAST(term AS TEXT), ' ') FROM search_terms GROUP BY tool"
        database.execute(sql)
        database.commit()
        bare = catalog.build_search_sql(2)
        values = [value for word in QUERY.encode().split() for value in (word, word, word + b"\xff")]

        def search_bare() -> None:
            for _ in range(SEARCHES):
                database.execute(bare, [*values, 2, QUERY, PAGE_SIZE, 0]).fetchall()

        def search_peer() -> None:
            for _ in range(SEARCHES):
                words = " ".join(f"{word}*" for word in QUERY.split())
                database.execute(
                    "SELECT p.* FROM peer f JOIN packages p ON p.tool = f.tool WHERE peer MATCH ? "
                    "ORDER BY rank LIMIT ?",
                    (words, PAGE_SIZE),
                ).fetchall()

        def search_registry() -> None:
            for _ in range(SEARCHES):
                found = search_to_json(registry, QUERY, 1)
                assert len(found["tools"]) == PAGE_SIZE

        rows = compare(
            {"the bare SQL": search_bare, "pinwarden search": search_registry, "FTS5": search_peer},
            baseline="the bare SQL",
            rounds=7,
        )
        database.close()
        registry.database.close()
    goal = Goal(name="pinwarden search", against="the bare SQL", at_most=MAX_SEARCH_RATIO)
    return table(f"Searching {SEARCHED:,} bundles for two words", rows, SEARCHES, [goal])


def _fill_catalog(registry: Registry, count: int) -> None:
    """Add bundles with the words of natural descriptions: a few words are in many bundles, most are in few."""
    random = Random(1)
    vocabulary = [f"word{number}" for number in range(20_000)]
    weights = list(accumulate(1 / (rank + 10) for rank in range(len(vocabulary))))
    with registry.database.transaction() as transaction:
        for number in range(count):
            text = " ".join(random.choices(vocabulary, cum_weights=weights, k=40))
            tool = f"acme.t{number}"
            package = Package(
                tool=tool,
                namespace="acme",
                version="1.0.0",
                is_yanked=False,
                versions=1,
                description=text,
                published_at=now(),
            )
            catalog.replace_package(transaction, package, list_bundle_terms(tool, "", text, None))
