"""Hostile and wrong input of a census: it is reported, and stops nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import pinwarden
from tests.support.postgres import Cluster

SERVER = """
import json, os, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    first = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
    text = "Nul \\u0000 and " + os.environ.get("SECRET", "no secret")
    tools = [{"name": "a\\u0000b", "description": text, "inputSchema": {"type": "object"}}]
    result = first if asked["method"] == "initialize" else {"tools": tools}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}) + chr(10))
    sys.stdout.flush()
"""


def run(folder: Path, *words: str, database: str = "census.sqlite") -> tuple[int, dict[str, Any]]:
    variables = {"SECRET": "hunter2hunter2", "PINWARDEN_CENSUS": database}
    outcome = pinwarden("census", *words, "--format", "json", cwd=folder, env=variables)
    return outcome.code, json.loads(outcome.out)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_server_with_unusable_texts_stops_no_other_one(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    entry = {"command": "python3", "args": ["server.py"], "env": {"SECRET": "${SECRET}"}}
    needy = {"command": "python3", "args": ["server.py", "${SECRET}"]}
    servers = {"good": entry, "bad\x00name": entry, "bad\nname": entry, "needy": needy, "broken": {"command": 1}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    database = cluster.new_database() if kind == "postgresql" else "census.sqlite"
    code, report = run(tmp_path, "run", "mcp.json", "--allow-execute", "--no-sandbox", database=database)
    assert code in (1, 3)
    assert report["states"] == {"observed": 1, "failed": 1}
    assert report["failures"] == [{"code": "VARIABLE_MISSING", "reason": "", "servers": 1}]
    export = pinwarden("census", "export", "x.csv", "--database", database, cwd=tmp_path)
    assert export.code == 0, export.err
    pinwarden("census", "report", "site", "--database", database, cwd=tmp_path)
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]
    assert not any(b"hunter2" in text for text in texts)  # no variable of the worker reached the server


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "missing.json"), "FILE_UNREADABLE"),
        (("run", "ftp://registry.example"), "USAGE"),
        (("run", "mcp.json", "--per-second", "nan"), "USAGE"),
        (("run", "mcp.json", "--jobs", "0"), "USAGE"),
        (("run", "mcp.json", "--contact", "a@b.example\r\nX-Evil: 1"), "USAGE"),
        (("run", "mcp.json", "--memory", "-1"), "USAGE"),
        (("run", "empty.json"), "TARGET_INVALID"),
        (("run", "http://10.0.0.1"), "ADDRESS_REFUSED"),
        (("status",), "SERVER_NOT_FOUND"),
        (("diff", "1", "2"), "SERVER_NOT_FOUND"),
    ],
)
def test_wrong_input_has_an_error_with_a_code(words: tuple[str, ...], code: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    (tmp_path / "empty.json").write_text("{}")
    exit_code, report = run(tmp_path, *words)
    assert exit_code != 0
    assert report["error"]["code"] == code, report


def test_a_worker_logs_each_server_as_json_and_counts_them_for_prometheus(tmp_path: Path) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    (tmp_path / "server.py").write_text(SERVER)
    servers = {"good": {"command": "python3", "args": ["server.py"]}, "bad": {"command": "/bin/false"}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    run(tmp_path, "run", "mcp.json", "--queue-only")
    options = ("--allow-execute", "--no-sandbox", "--retry-after", "0.1", "--log-format", "json", "--metrics", "m.prom")
    done = pinwarden("census", "worker", "--database", "census.sqlite", *options, cwd=tmp_path)
    assert done.code == 0, done.err
    lines = {line["server"].partition("#")[2]: line for line in map(json.loads, done.err.splitlines())}
    assert (lines["good"]["state"], lines["good"]["level"], lines["good"]["run"]) == ("observed", "info", 1)
    assert (lines["bad"]["code"], lines["bad"]["reason"], lines["bad"]["attempts"]) == ("PROBE_FAILED", "ended", 3)
    families = text_string_to_metric_families((tmp_path / "m.prom").read_text())
    samples = {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}
    assert samples["pinwarden_census_results_total", "observed"] == 1
    assert samples["pinwarden_census_failures_total", "PROBE_FAILED", "ended"] == 1
    assert samples["pinwarden_census_jobs",] == 0


def test_attack_a_text_that_was_changed_in_the_database_is_not_compared_with(tmp_path: Path) -> None:
    import sqlite3

    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"a": {"command": "python3", "args": ["server.py"]}}}))
    words = ("run", "mcp.json", "--allow-execute", "--no-sandbox", "--refresh")
    assert run(tmp_path, *words)[1]["states"] == {"observed": 1}
    with sqlite3.connect(tmp_path / "census.sqlite") as connection:
        connection.execute("UPDATE census_texts SET body = replace(body, 'secret', 'sacred') WHERE kind = 'tool'")
    assert run(tmp_path, *words)[1]["failures"] == [{"code": "DATABASE_CORRUPT", "reason": "", "servers": 1}]


def test_a_damaged_memory_of_a_server_is_an_error_and_no_result(tmp_path: Path) -> None:
    import sqlite3

    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    run(tmp_path, "run", "mcp.json", "--queue-only")
    with sqlite3.connect(tmp_path / "census.sqlite") as connection:
        connection.execute("UPDATE census_servers SET memory = '{}'")
    _, report = run(tmp_path, "run", "mcp.json", "--allow-execute")
    assert report["failures"] == [{"code": "DATABASE_CORRUPT", "reason": "", "servers": 1}]
