"""The requests that change something: who may ask, how much is taken, and what is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.registry.authorization import Caller, caller_of, record_refusal
from pinwarden.registry.changes import add_attestation, carry_out
from pinwarden.registry.publish import keep_archive, publish
from pinwarden.registry.registry import Registry
from pinwarden.registry.version import version_value
from pinwarden.registry.witnesses import take_cosignatures

_MOST_COSIGNATURES = 64 * 1024
_SLOW_LINE = 400 * 1024  # bytes in a second; the largest archive takes eleven minutes


class Operation(Record):
    """One kind of request."""

    name: str
    method: str
    admit: Callable[[Registry, Request, int], Caller | None]
    most: Callable[[Registry], int]
    run: Callable[[Registry, Any, Request, bytes], Any]
    body_seconds: float = 60.0
    """For a body of any length to arrive, besides the time that its length takes over a slow line."""

    def seconds_for(self, size: int) -> float:
        """How long a body may take, so that a small one is no way to hold a place for as long as a large one."""
        return self.body_seconds + size / _SLOW_LINE


def note_refusal(registry: Registry, caller: Caller | None, name: str, err: PinwardenError) -> None:
    """Write a refusal into the audit log, unless it is the database that failed."""
    if not err.code.startswith("DATABASE_"):
        record_refusal(registry, caller, name, err.message, err)


def _with_token(name: str) -> Callable[[Registry, Request, int], Caller]:
    def admit(registry: Registry, request: Request, size: int) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return caller_of(registry, token if scheme.lower() == "bearer" else None, name, size)

    return admit


def _nobody(_registry: Registry, _request: Request, _size: int) -> None:
    """A cosignature proves by itself whose it is."""


def _most_request(registry: Registry) -> int:
    return registry.limits.request_bytes


def _upload(registry: Registry, _caller: Caller, request: Request, body: bytes) -> Any:
    cid = request.path_params["cid"]
    return {"cid": cid, "content_hash": str(keep_archive(registry, body, cid))}


def _publish(registry: Registry, caller: Caller, _request: Request, body: bytes) -> Any:
    published = publish(registry, caller, body)
    return {**version_value(published.version), "event": published.to_json()}


def _change(registry: Registry, caller: Caller, _request: Request, body: bytes) -> Any:
    done = carry_out(registry, caller, body)
    return {"subject": done.subject, "changed": done.changed}


def _attest(registry: Registry, caller: Caller, _request: Request, body: bytes) -> Any:
    done = add_attestation(registry, caller, body)
    return {"subject": done.subject, "changed": done.changed}


def _cosign(registry: Registry, _caller: None, _request: Request, body: bytes) -> Any:
    return {"taken": take_cosignatures(registry, body)}


UPLOAD = Operation(
    name="upload", method="PUT", admit=_with_token("upload"), most=lambda each: each.limits.archive_bytes, run=_upload
)
PUBLISH = Operation(name="publish", method="POST", admit=_with_token("publish"), most=_most_request, run=_publish)
CHANGE = Operation(name="change", method="POST", admit=_with_token("change"), most=_most_request, run=_change)
ATTEST = Operation(name="attest", method="POST", admit=_with_token("attest"), most=_most_request, run=_attest)
COSIGN = Operation(
    name="cosign", method="POST", admit=_nobody, most=lambda _: _MOST_COSIGNATURES, run=_cosign, body_seconds=10.0
)
