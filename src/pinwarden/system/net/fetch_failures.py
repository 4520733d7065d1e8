"""Why something could not be fetched, in words that programs can tell apart."""

from __future__ import annotations

import ssl

from urllib3.exceptions import ProxyError

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.visible import show_invisible
from pinwarden.system.net.network_guard import HostNotFoundError
from pinwarden.system.target import HttpAddress


def fetch_failed(reason: str, message: str, status: int | None = None, *, hint: str | None = None) -> PinwardenError:
    """Something that could not be fetched. The reason is a word that programs can tell apart."""
    data: dict[str, object] = {"reason": reason} if status is None else {"reason": reason, "status": status}
    return PinwardenError("FETCH_FAILED", message, hint=hint, data=data)


def status_failed(address: object, status: int, body: bytes) -> PinwardenError:
    """An answer that says no: it was reached, so its own words count, and not the network."""
    said = error_text(body)
    message = f"{address} answered with status {status}" + (f": {said}" if said else "")
    if status in (401, 403):
        return fetch_failed("unauthorized", message, status, hint="Check the credentials that your client has for it.")
    if status == 429 or status >= 500:
        return fetch_failed("status", message, status, hint="Try again later. If it stays so, ask who runs it.")
    return fetch_failed("status", message, status, hint="Check the address and the name, or ask who runs it.")


def error_text(body: bytes) -> str:
    """The code and the sentence of an error in JSON, as registries write them; empty if there is none."""
    try:
        found = strict_json.parse_json(body, Limits(max_bytes=MAX_ERROR_BYTES, max_depth=10))
    except PinwardenError:
        return ""
    if isinstance(found, dict) and isinstance(found.get("errors"), list) and found["errors"]:
        found = found["errors"][0]
    elif isinstance(found, dict) and isinstance(found.get("error"), dict):
        found = found["error"]
    if not isinstance(found, dict):
        return ""
    words = [found.get(name) for name in ("code", "error", "message", "detail", "reason")]
    texts = [" ".join(word[:_MOST_SENTENCE].split()) for word in words if isinstance(word, str) and word]
    return show_invisible(": ".join(dict.fromkeys(texts))[:_MOST_SENTENCE])


MAX_ERROR_BYTES = 16 * 1024
_MOST_SENTENCE = 300


def too_large(address: HttpAddress, allowed: int) -> PinwardenError:
    """More bytes than we are willing to take."""
    return PinwardenError("FETCH_LIMIT", f"{address} is larger than {allowed} bytes", data={"allowed": allowed})


def offline_refused(address: HttpAddress) -> PinwardenError:
    """Nobody may be asked."""
    return PinwardenError(
        "FETCH_FAILED",
        f"{address} was not asked, because --offline was given",
        hint="Run it again without --offline.",
        data={"reason": "offline", "host": address.host_header},
    )


def connection_failed(err: Exception, address: HttpAddress) -> PinwardenError:
    """What a failure of the network or of TLS means for whoever asked."""
    told = _unreached(err, address)
    # Whoever sums several failures up names the hosts.
    return PinwardenError(told.code, told.message, hint=told.hint, data={**told.data, "host": address.host_header})


def _unreached(err: Exception, address: HttpAddress) -> PinwardenError:
    cause = first_cause(err)
    if isinstance(cause, ssl.SSLError):
        why = getattr(cause, "verify_message", "") or cause.reason or "TLS failed"
        hint = _CLOCK if getattr(cause, "verify_code", None) in (_NOT_YET_VALID, _EXPIRED) else None
        return fetch_failed("tls", f"{address} did not prove who it is: {why}", hint=hint)
    if isinstance(cause, HostNotFoundError):
        return fetch_failed("connect", f"the host {address.host} was not found")
    if isinstance(cause, TimeoutError) or "Timeout" in type(err).__name__:
        return fetch_failed("timeout", f"{address} did not answer in time")
    if isinstance(err, ProxyError):
        return fetch_failed("connect", f"the proxy of the environment did not lead to {address}")
    why = (isinstance(cause, OSError) and cause.strerror) or type(cause).__name__
    return fetch_failed("connect", f"{address} could not be reached: {why}")


_NOT_YET_VALID, _EXPIRED = 9, 10  # as OpenSSL numbers them
_CLOCK = "Check this machine's clock: the certificate is not valid at the time that it shows."


def first_cause(err: BaseException) -> BaseException:
    """The first of a chain of wrapped failures."""
    seen: BaseException = err
    while True:
        inner = seen.__cause__ or (seen.args[-1] if seen.args and isinstance(seen.args[-1], BaseException) else None)
        if inner is None or isinstance(seen, ssl.SSLError | HostNotFoundError):
            return seen
        seen = inner
