"""The write operations of the HTTP API, each with its authentication, size limit and function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.registry.access import Caller, authenticate, record_refusal
from pinwarden.registry.changes import add_attestation, add_cosignatures, apply_change
from pinwarden.registry.publish import publish, store_archive
from pinwarden.registry.registry import Registry
from pinwarden.registry.registry_documents import version_to_json

_MAX_COSIGNATURE_BYTES = 64 * 1024
_SLOWEST_UPLOAD = 400 * 1024  # bytes per second; the largest archive takes eleven minutes


class WriteOperation(Record):
    """One write operation of the HTTP API, with its limits."""

    name: str
    method: str
    admit: Callable[[Registry, Request, int], Caller | None]
    limit: Callable[[Registry], int]
    run: Callable[[Registry, Any, Request, bytes], Any]
    body_seconds: float = 60.0
    """Time allowed for a body, in addition to the time for its length at ``_SLOWEST_UPLOAD``."""

    def compute_body_timeout(self, size: int) -> float:
        """Return the timeout in seconds for a body of ``size`` bytes. A small body cannot occupy a slot for long."""
        return self.body_seconds + size / _SLOWEST_UPLOAD


def audit_refusal(registry: Registry, caller: Caller | None, name: str, err: PinwardenError) -> None:
    """Write a refused request to the audit log, unless the database itself failed."""
    if not err.code.startswith("DATABASE_"):
        record_refusal(registry, caller, name, err.message, err)


def _require_token(name: str) -> Callable[[Registry, Request, int], Caller]:
    def admit(registry: Registry, request: Request, size: int) -> Caller:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return authenticate(registry, token if scheme.lower() == "bearer" else None, name, size)

    return admit


def _require_no_token(_registry: Registry, _request: Request, _size: int) -> None:
    """Accept a request without a token. Cosignatures are authenticated by their signature."""


def _get_request_limit(registry: Registry) -> int:
    return registry.limits.request_bytes


def _upload(registry: Registry, _caller: Caller, request: Request, body: bytes) -> Any:
    cid = request.path_params["cid"]
    return {"cid": cid, "content_hash": str(store_archive(registry, body, cid))}


def _publish(registry: Registry, caller: Caller, _request: Request, body: bytes) -> Any:
    published = publish(registry, caller, body)
    output = {"probe_output": list(published.probe_output)} if published.probe_output else {}
    return {**version_to_json(published.version), "event": published.to_json(), **output}


def _change(registry: Registry, caller: Caller, _request: Request, body: bytes) -> Any:
    result = apply_change(registry, caller, body)
    return {"subject": result.subject, "changed": result.changed}


def _attest(registry: Registry, caller: Caller, _request: Request, body: bytes) -> Any:
    result = add_attestation(registry, caller, body)
    return {"subject": result.subject, "changed": result.changed}


def _cosign(registry: Registry, _caller: None, _request: Request, body: bytes) -> Any:
    return {"taken": add_cosignatures(registry, body)}


UPLOAD = WriteOperation(
    name="upload",
    method="PUT",
    admit=_require_token("upload"),
    limit=lambda registry: registry.limits.archive_bytes,
    run=_upload,
)
PUBLISH = WriteOperation(
    name="publish", method="POST", admit=_require_token("publish"), limit=_get_request_limit, run=_publish
)
CHANGE = WriteOperation(
    name="change", method="POST", admit=_require_token("change"), limit=_get_request_limit, run=_change
)
ATTEST = WriteOperation(
    name="attest", method="POST", admit=_require_token("attest"), limit=_get_request_limit, run=_attest
)
COSIGN = WriteOperation(
    name="cosign",
    method="POST",
    admit=_require_no_token,
    limit=lambda _: _MAX_COSIGNATURE_BYTES,
    run=_cosign,
    body_seconds=10.0,
)
