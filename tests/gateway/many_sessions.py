"""``python -m tests.gateway.many_sessions FOLDER COUNT``: COUNT short sessions with one gateway in this process.

Other threads of the process open and close files and start processes, so a descriptor that is closed twice belongs to
another thread by then. This runs in a separate process because such an error can end it. It prints a JSON report.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pinwarden.gateway.http.header_checks import GatewayClient
from pinwarden.gateway.http.http_limits import HttpLimits
from tests.gateway.descriptors import StrictLoop, churning, open_descriptors
from tests.gateway.http_gateway import RawClient, RunningGateway, UpstreamServer, gateway, guard
from tests.servers import witness

PARALLEL = 16
CALLS = 3
TOKENS = {f"pwt_session-{number}": GatewayClient(name=f"client-{number}") for number in range(5)}
LIMITS = HttpLimits(grace_seconds=60)


class Sessions:
    """What the clients saw."""

    def __init__(self, count: int) -> None:
        self.todo: SimpleQueue[int] = SimpleQueue()
        for index in range(count):
            self.todo.put(index)
        self.served: dict[str, str] = {}
        """The server's nonce by the session's secret."""
        self.wrong: list[str] = []

    def work(self, at: RunningGateway) -> None:
        """Run one session after the other until none is left."""
        tokens = list(TOKENS)
        while True:
            try:
                index = self.todo.get_nowait()
            except Empty:
                return
            secret = secrets.token_hex(16)
            try:
                self._session(at, tokens[index % len(tokens)], secret)
            except Exception as err:  # noqa: BLE001  whatever it is, this session failed
                self.wrong.append(f"session {index}: {type(err).__name__}: {err}")

    def _session(self, at: RunningGateway, token: str, secret: str) -> None:
        with RawClient(at, "witness", token) as raw:
            response = raw.initialize()
            assert response["result"]["serverInfo"]["name"] == "witness", response
            nonces = set()
            for turn in range(CALLS):
                mark = f"{secret}-{turn}"
                answer = raw.session_request("tools/call", {"name": "echo", "arguments": {"secret": secret}}, mark)
                assert answer["id"] == mark, answer
                nonce, echoed = answer["result"]["content"][0]["text"].split()
                assert echoed == secret, answer
                nonces.add(nonce)
            assert len(nonces) == 1, nonces
            self.served[secret] = nonces.pop()
            status, _, body = raw.send(b"", method="DELETE")
            assert status in (200, 204), (status, body)


def run_sessions(folder: Path, count: int) -> dict[str, Any]:
    """Run the sessions, 16 at a time, and report what clients, servers, threads and the loop saw."""
    report = folder / "report"
    report.touch()
    command = [sys.executable, "-I", "-S", str(Path(witness.__file__)), str(report)]
    sessions = Sessions(count)
    loop = StrictLoop()
    before = open_descriptors()
    servers = {"witness": UpstreamServer(guard("witness"), command=command)}
    with gateway(servers, None, LIMITS, TOKENS, lambda: loop) as at, churning(folder) as churn:
        threads = [threading.Thread(target=sessions.work, args=(at,)) for _ in range(PARALLEL)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {
        "wrong": sessions.wrong,
        "served": sessions.served,
        "reports": [line.split(" ") for line in report.read_text().splitlines()],
        "turns": churn.turns,
        "disturbed": churn.disturbed,
        "pipes": loop.pipes,
        "checked": loop.checked,
        "closed_twice": loop.closed_twice,
        "left_open": [name for descriptor, name in open_descriptors().items() if descriptor not in before],
    }


if __name__ == "__main__":
    json.dump(run_sessions(Path(sys.argv[1]), int(sys.argv[2])), sys.stdout)
