"""The errors of HTTP clients, each with a reason for programs and a message for people."""

from __future__ import annotations

import ssl

from urllib3.exceptions import ProxyError

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.strict_json import Limits
from pinwarden.core.text import show_invisible
from pinwarden.system.net.connections import HostNotFoundError, describe_connection_failure
from pinwarden.system.target import HttpAddress


def fetch_error(reason: str, message: str, status: int | None = None, *, hint: str | None = None) -> PinwardenError:
    """Return a ``FETCH_FAILED`` error. Its ``reason`` is for programs, such as ``timeout`` or ``unauthorized``."""
    data: dict[str, object] = {"reason": reason} if status is None else {"reason": reason, "status": status}
    return PinwardenError("FETCH_FAILED", message, hint=hint, data=data)


def status_error(address: object, status: int, body: bytes) -> PinwardenError:
    """Return the error for an unexpected status, with the server's own error text."""
    server_text = extract_error_text(body)
    message = f"{address} responded with status {status}" + (f": {server_text}" if server_text else "")
    if status in (401, 403):
        return fetch_error(
            "unauthorized", message, status, hint="Check the credentials in your client's configuration."
        )
    if status == 429 or status >= 500:
        return fetch_error("status", message, status, hint="Try again later, or contact the operator of the server.")
    return fetch_error("status", message, status, hint="Check the address and the package name.")


def extract_error_text(body: bytes) -> str:
    """Return code and message of a JSON error response in any registry's format; empty if there is none."""
    try:
        body_json = strict_json.parse_json(body, Limits(max_bytes=MAX_ERROR_BYTES, max_depth=10))
    except PinwardenError:
        return ""
    if isinstance(body_json, dict) and isinstance(body_json.get("errors"), list) and body_json["errors"]:
        body_json = body_json["errors"][0]
    elif isinstance(body_json, dict) and isinstance(body_json.get("error"), dict):
        body_json = body_json["error"]
    if not isinstance(body_json, dict):
        return ""
    words = [body_json.get(name) for name in ("code", "error", "message", "detail", "reason")]
    texts = [" ".join(word[:_MAX_TEXT].split()) for word in words if isinstance(word, str) and word]
    return show_invisible(": ".join(dict.fromkeys(texts))[:_MAX_TEXT])


MAX_ERROR_BYTES = 16 * 1024
_MAX_TEXT = 300


def too_large_error(address: HttpAddress, allowed: int) -> PinwardenError:
    """Return the error for a response that exceeds its size limit."""
    return PinwardenError("FETCH_LIMIT", f"{address} is larger than {allowed} bytes", data={"allowed": allowed})


def offline_error(address: HttpAddress) -> PinwardenError:
    """Return the error for a request with ``--offline``."""
    return PinwardenError(
        "FETCH_FAILED",
        f"{address} was not requested because of --offline",
        hint="Run the command again without --offline.",
        data={"reason": "offline", "host": address.host_header},
    )


def connection_error(err: Exception, address: HttpAddress) -> PinwardenError:
    """Return the error for a network or TLS failure. Its data names the host."""
    error = _classify_connection_error(err, address)
    return PinwardenError(error.code, error.message, hint=error.hint, data={**error.data, "host": address.host_header})


def _classify_connection_error(err: Exception, address: HttpAddress) -> PinwardenError:
    cause = find_first_cause(err)
    if isinstance(err, ProxyError) and not isinstance(cause, HostNotFoundError | ssl.SSLError | TimeoutError):
        return fetch_error("connect", f"the proxy in the environment could not reach {address}")
    if "Timeout" in type(err).__name__ and not isinstance(cause, ssl.SSLError):
        cause = TimeoutError()
    failure = describe_connection_failure(cause, address)
    return fetch_error(failure.reason, failure.message, hint=failure.hint)


def find_first_cause(err: BaseException) -> BaseException:
    """Return the original exception in a chain of wrapped ones."""
    current: BaseException = err
    while True:
        inner = current.__cause__ or (
            current.args[-1] if current.args and isinstance(current.args[-1], BaseException) else None
        )
        if inner is None or isinstance(current, ssl.SSLError | HostNotFoundError):
            return current
        current = inner
