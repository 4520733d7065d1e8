"""Why something could not be fetched, in words that programs can tell apart."""

from __future__ import annotations

import ssl

from urllib3.exceptions import ProxyError

from pinwarden.adapters.net.network_guard import HostNotFoundError
from pinwarden.core.errors import PinwardenError
from pinwarden.documents.target import Address


def unfetched(reason: str, message: str, status: int | None = None) -> PinwardenError:
    """Something that could not be fetched. The reason is a word that programs can tell apart."""
    data: dict[str, object] = {"reason": reason} if status is None else {"reason": reason, "status": status}
    return PinwardenError("FETCH_FAILED", message, data=data)


def too_large(address: Address, allowed: int) -> PinwardenError:
    """More bytes than we are willing to take."""
    return PinwardenError("FETCH_LIMIT", f"{address} is larger than {allowed} bytes", data={"allowed": allowed})


def unasked(address: Address) -> PinwardenError:
    """Nobody may be asked."""
    return PinwardenError(
        "FETCH_FAILED",
        f"{address} was not asked, because --offline was given",
        hint="Run it again without --offline.",
        data={"reason": "offline", "host": address.host_header},
    )


def unreached(err: Exception, address: Address) -> PinwardenError:
    """What a failure of the network or of TLS means for whoever asked."""
    told = _unreached(err, address)
    # Whoever sums several failures up names the hosts.
    return PinwardenError(told.code, told.message, data={**told.data, "host": address.host_header})


def _unreached(err: Exception, address: Address) -> PinwardenError:
    cause = first_cause(err)
    if isinstance(cause, ssl.SSLError):
        why = getattr(cause, "verify_message", "") or cause.reason or "TLS failed"
        return unfetched("tls", f"{address} did not prove who it is: {why}")
    if isinstance(cause, HostNotFoundError):
        return unfetched("connect", f"the host {address.host} was not found")
    if isinstance(cause, TimeoutError) or "Timeout" in type(err).__name__:
        return unfetched("timeout", f"{address} did not answer in time")
    if isinstance(err, ProxyError):
        return unfetched("connect", f"the proxy of the environment did not lead to {address}")
    why = (isinstance(cause, OSError) and cause.strerror) or type(cause).__name__
    return unfetched("connect", f"{address} could not be reached: {why}")


def first_cause(err: BaseException) -> BaseException:
    """The first of a chain of wrapped failures."""
    seen: BaseException = err
    while True:
        inner = seen.__cause__ or (seen.args[-1] if seen.args and isinstance(seen.args[-1], BaseException) else None)
        if inner is None or isinstance(seen, ssl.SSLError | HostNotFoundError):
            return seen
        seen = inner
