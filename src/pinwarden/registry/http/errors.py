"""Errors as HTTP answers: the code, the sentence and the hint, and a status that clients understand."""

from __future__ import annotations

from starlette.responses import Response

from pinwarden.bundle.signatures import to_bytes
from pinwarden.core.errors import EXIT_REFUSED, EXIT_USAGE, PinwardenError
from pinwarden.registry.read_api import JSON

_STATUS = {
    "PUBLISHER_UNKNOWN": 401,
    "NAMESPACE_REFUSED": 403,
    "SERVER_NOT_FOUND": 404,
    "ARTIFACT_MISSING": 404,
    "VERSION_EXISTS": 409,
    "VERSION_YANKED": 409,
    "VERSION_OLDER": 409,
    "REQUEST_STALE": 409,
    "PUBLISH_LIMIT": 413,
    "INPUT_LIMIT": 422,
    "OVERLOADED": 503,
    "REGISTRY_KEY_MISMATCH": 503,
    "REGISTRY_LOG_BEHIND": 503,
    "LOG_STATE_CORRUPT": 500,
    "DATABASE_UNAVAILABLE": 503,
    "DATABASE_CORRUPT": 500,
    "DATABASE_NEWER": 500,
    "FETCH_FAILED": 503,
    "FILE_UNWRITABLE": 500,
    "FILE_UNREADABLE": 500,
    "INTERNAL": 500,
}


def status_of(err: PinwardenError) -> int:
    """The status of an error. What a caller sent and is not acceptable is theirs; what failed here is ours."""
    if err.data.get("reason") in ("rate", "queue"):
        return 429
    known = _STATUS.get(err.code)
    if known is not None:
        return known
    return 422 if err.exit_code in (EXIT_REFUSED, EXIT_USAGE) else 400


def refusal(err: PinwardenError) -> Response:
    """The answer. What failed here is told without details: they are for the operator."""
    status = status_of(err)
    message = err.message if status < 500 or err.code == "OVERLOADED" else "the registry could not do it"
    body = to_bytes({"error": {"code": err.code, "message": message, "hint": err.hint}})
    headers = {"www-authenticate": "Bearer"} if status == 401 else {}
    if status in (429, 503):
        headers["retry-after"] = "600" if err.data.get("reason") == "rate" else "1"
    return Response(body, status_code=status, media_type=JSON, headers=headers)
