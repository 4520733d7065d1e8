"""What access tokens, rules and limits add to a call: the same gateway with a static token, and with all of them.

With: a JWT of an issuer, rules for a team and for tools by their hints, and a rate and a daily budget that the calls
count against. Every call repeats the token of the one before, as clients do; a token is verified once. Once with limits
that this gateway counts alone, and once with limits that all gateways with a PostgreSQL database count together.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa
from jwt import encode
from jwt.algorithms import RSAAlgorithm

from benchmarks.measure import Goal, Row, one_core, table
from benchmarks.relaying_http import CALLS, ROUNDS, Target, measure_calls, start_gateway, start_upstream
from pinwarden.identity.access_tokens import AccessTokenRules, verify_access_token
from pinwarden.identity.signed_token import VerificationKey, parse_keys
from tests.support.postgres import postgres

MAX_ADDED = 1.3
URL = "https://mcp.example.com"
_POLICY = """
[identity]
issuer = "{issuer}"
[identity.clients]
url = "https://mcp.example.com"
read-scope = "tools:read"
call-scope = "tools:call"
[[policy.gateway.rules]]
team = "security"
access = "deny"
[[policy.gateway.rules]]
item = "delete_*"
read-only = false
access = "deny"
[[policy.gateway.rules]]
team = "platform"
client = "*@desk"
access = "allow"
rate = "1000000/second"
daily = 100000000
"""


class _Key:
    def __init__(self) -> None:
        self.private = rsa.generate_private_key(65537, 2048)
        public = json.loads(RSAAlgorithm.to_jwk(self.private.public_key()))
        self.jwk = {**{name: public[name] for name in ("kty", "n", "e")}, "kid": "k1", "alg": "RS256", "use": "sig"}

    def sign(self, issuer: str) -> str:
        now = int(time.time())
        claims: dict[str, Any] = {"iss": issuer, "sub": "alice", "client_id": "desk", "aud": f"{URL}/mcp"}
        claims |= {"iat": now, "exp": now + 3600, "scope": "tools:read tools:call", "groups": ["platform"]}
        return encode(claims, self.private, algorithm="RS256", headers={"kid": "k1", "typ": "at+jwt"})


@contextmanager
def _issuer(key: _Key) -> Iterator[str]:
    documents: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(documents.get(self.path)).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    documents["/.well-known/oauth-authorization-server"] = {"issuer": url, "jwks_uri": f"{url}/jwks"}
    documents["/jwks"] = {"keys": [key.jwk]}
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()


def report() -> str:
    key = _Key()
    with one_core(), TemporaryDirectory() as folder, ExitStack() as stack:
        issuer = stack.enter_context(_issuer(key))
        upstream = stack.enter_context(start_upstream())
        url = f"http://127.0.0.1:{upstream}/mcp"
        plain, with_all = Path(folder) / "plain", Path(folder) / "with"
        for root in (plain, with_all):
            root.mkdir()
        port, token = stack.enter_context(start_gateway(plain, url))
        other, _ = stack.enter_context(start_gateway(with_all, url, _POLICY.format(issuer=issuer)))
        with_database = Path(folder) / "shared"
        with_database.mkdir()
        database = stack.enter_context(postgres()).new_database()
        shared, _ = stack.enter_context(start_gateway(with_database, url, _POLICY.format(issuer=issuer), database))
        targets = [
            Target("direct", upstream),
            Target("a static token", port, "/mcp/bench", token),
            Target("a JWT, rules and limits", other, "/mcp/bench", key.sign(issuer)),
            Target("a JWT, rules and shared limits", shared, "/mcp/bench", key.sign(issuer)),
        ]
        medians = measure_calls(targets)
    direct = medians.pop("direct")
    added = {
        f"added with {name}": [whole - unit for whole, unit in zip(times, direct, strict=True)]
        for name, times in medians.items()
    }
    floor = added["added with a static token"]
    rows = [
        Row(
            name=name,
            microseconds=statistics.median(times) * 1e6,
            ratio=statistics.median(value / unit for value, unit in zip(times, floor, strict=True)),
        )
        for name, times in {"direct": direct, **added}.items()
    ]
    goals = [
        Goal(name=f"added with a JWT, rules and {limits}", against="added with a static token", at_most=MAX_ADDED)
        for limits in ("limits", "shared limits")
    ]
    title = f"A call of 100 bytes through the gateway, one core, {ROUNDS} rounds of {CALLS}"
    return "\n\n".join((table(title, rows, 1, goals), _verification(key)))


def _verification(key: _Key) -> str:
    """The time to verify a token that was not seen before, compared with the signature alone."""
    (known,) = parse_keys({"keys": [key.jwk]})

    class Keys:
        def find_key(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
            del key_id, algorithm
            return known

    token = key.sign("https://login.example.com")
    rules = AccessTokenRules(issuer="https://login.example.com", audiences=frozenset({f"{URL}/mcp"}))
    head, _, signature = token.rpartition(".")
    algorithm, raw = RSAAlgorithm(RSAAlgorithm.SHA256), _decode(signature)
    candidates: dict[str, Callable[[], object]] = {
        "the signature": lambda: bool(algorithm.verify(head.encode(), key.private.public_key(), raw)),
        "the whole token": lambda: verify_access_token(token, Keys(), rules, time.time()),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, run in candidates.items():
            start = time.process_time()
            for _ in range(CALLS):
                run()
            times[name].append((time.process_time() - start) / CALLS)
    floor = times["the signature"]
    rows = [
        Row(
            name=name,
            microseconds=statistics.median(values) * 1e6,
            ratio=statistics.median(value / unit for value, unit in zip(values, floor, strict=True)),
        )
        for name, values in times.items()
    ]
    return table("The first request with an access token: to verify", rows, 1, [])


def _decode(part: str) -> bytes:
    from base64 import urlsafe_b64decode

    return urlsafe_b64decode(part + "=" * (-len(part) % 4))
