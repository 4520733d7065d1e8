"""The stdio fast path is as strict as the session, and records a call before the client gets its response."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import orjson
import pytest

from benchmarks import echo_server
from benchmarks.relaying import ENCODINGS
from pinwarden.gateway.audit.chain import load_audit_schema, read_entries
from pinwarden.gateway.audit.log import recover_journals
from pinwarden.system.database import open_database
from tests.support.audit import verify

CALL = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"}}}\n'
ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"hi"}]}}\n'
HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


class Running:
    """A gateway with a client that writes compact JSON, as most clients do."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process, self._in, self._out = process, process.stdin, process.stdout

    def send(self, *lines: bytes) -> None:
        self._in.write(b"".join(lines))
        self._in.flush()

    def line(self) -> bytes:
        return self._out.readline()

    def warm(self) -> int:
        """Call until the fast path is certainly open; return the last id."""
        request_id, end = 1, monotonic() + 0.7
        while monotonic() < end:
            request_id += 1
            self.send(CALL % request_id)
            assert self.line() == ANSWER % request_id
        return request_id


@contextmanager
def running(folder: Path) -> Iterator[Running]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pinwarden", "run", "--", sys.executable, str(Path(echo_server.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PINWARDEN_STATE": str(folder / "state")},
    )
    try:
        gateway = Running(process)
        opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
        gateway.send(orjson.dumps(opening) + b"\n")
        assert b'"result"' in gateway.line()
        gateway.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        yield gateway
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.kill()
        process.wait(60)
        process.stdin.close()
        process.stdout.close()


def called(folder: Path) -> list[str]:
    """Return the request ids of the calls in the log, after importing the journals of killed gateways."""
    (url,) = (folder / "state").glob("**/*.sqlite")
    database = open_database(url, load_audit_schema())
    for journals in {path.parent for path in (folder / "state").glob("**/*.journal")}:
        recover_journals(database, journals)
    assert verify(database).breaks == ()
    request_ids = [
        entry.event.call.partition("/")[2] for entry in read_entries(database) if entry.event.kind == "called"
    ]
    database.close()
    return request_ids


def test_every_call_answered_before_the_gateway_was_killed_is_in_the_log(tmp_path: Path) -> None:
    with running(tmp_path) as gateway:
        last = gateway.warm()
        gateway.send(*(CALL % request_id for request_id in range(last + 1, last + 201)))
        for request_id in range(last + 1, last + 151):
            assert gateway.line() == ANSWER % request_id
        gateway.process.kill()
        gateway.process.wait(60)
    request_ids = called(tmp_path)
    assert request_ids[: last + 149] == [str(request_id) for request_id in range(2, last + 151)]
    assert len(set(request_ids)) == len(request_ids)


@pytest.mark.parametrize("beside", [b'"Params":{"name":"evil"}', b'"Method":"tools/list"', b'"result":{}'])
def test_attack_a_call_with_a_case_variant_member_does_not_take_the_fast_path(tmp_path: Path, beside: bytes) -> None:
    """Attack: case-insensitive parsers read ``Params`` as ``params`` and would call a tool that was not judged."""
    with running(tmp_path) as gateway:
        last = gateway.warm()
        gateway.send((CALL % (last + 1)).replace(b'"method"', beside + b',"method"'))
        assert json.loads(gateway.line())["error"]["data"]["pinwarden"]["code"] == "message_doubtful"
        gateway.send((CALL % (last + 2)).replace(b'"name"', b'"Name":"evil","name"'))
        assert json.loads(gateway.line())["error"]["data"]["pinwarden"]["code"] == "message_doubtful"


def test_an_ambiguous_message_after_hundreds_of_calls_is_refused(tmp_path: Path) -> None:
    with running(tmp_path) as gateway:
        last = gateway.warm()
        twice = b'{"jsonrpc":"2.0","id":1000001,"id":1000002,"method":"tools/call","params":{"name":"echo"}}\n'
        inner = b'{"jsonrpc":"2.0","id":1000003,"method":"tools/call","params":{"name":"echo","name":"evil"}}\n'
        large = b'{"jsonrpc":"2.0","id":1000004,"method":"tools/call","params":{"name":"echo","x":1e999}}\n'
        for bad in (twice, inner, large):
            gateway.send(bad)
            assert json.loads(gateway.line())["error"]["code"] == -32700
        gateway.send(CALL.replace(b"echo", b"evil") % 1000005)
        assert json.loads(gateway.line())["error"]["data"]["pinwarden"]["name"] == "evil"
        gateway.send(CALL % (last + 1), twice, CALL % (last + 2))
        lines = sorted(gateway.line() for _ in range(3))
        assert sorted((ANSWER % (last + 1), ANSWER % (last + 2))) == [line for line in lines if b"result" in line]
        whole = CALL % (last + 3)
        gateway.send(whole[:40])
        gateway.send(whole[40:] + (CALL % (last + 4))[:50])
        assert gateway.line() == ANSWER % (last + 3)
        gateway.send((CALL % (last + 4))[50:])
        assert gateway.line() == ANSWER % (last + 4)
        assert gateway.process.poll() is None
    assert called(tmp_path) == [str(request_id) for request_id in range(2, last + 5)]


def test_calls_in_any_json_formatting_are_relayed_byte_for_byte_and_recorded(tmp_path: Path) -> None:
    with running(tmp_path) as gateway:
        last = gateway.warm()
        ids = []
        for request_id, (name, spelling) in enumerate(ENCODINGS.items(), last + 1):
            call = spelling(request_id)
            ids.append(str(json.loads(call)["id"]))
            gateway.send(call)
            written = json.dumps(json.loads(call)["id"]).encode()
            if "reported" in name:
                assert gateway.line() == echo_server.PROGRESS % written
            spaced = b'", "' in call
            assert gateway.line() == (echo_server.SPACED if spaced else echo_server.COMPACT) % written
        gateway.process.kill()
        gateway.process.wait(60)
    assert called(tmp_path)[last - 1 :] == ids
