"""Running a resolver: in an empty folder, with a short environment, bounded in time and output, and never a script."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from pinwarden.adapters.endpoints.endpoint import Endpoint
from pinwarden.adapters.net.fetch import proxy_for, unfetched
from pinwarden.adapters.net.network_guard import HostNotFoundError, NetworkRules, destinations
from pinwarden.adapters.process_tree import ProcessTree
from pinwarden.core.errors import PinwardenError

_KEPT_BYTES = 4096
_MAX_OUTPUT = 1 << 20  # what resolvers print is a version or nothing; their answers are files


def run_resolver(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, seconds: float, secrets: Sequence[str] = ()
) -> bytes:
    """What the program wrote to its standard output. Its failure is ours, with the end of what it complained about."""
    with TemporaryFile() as out, TemporaryFile() as complaints:
        try:
            process = subprocess.Popen(  # noqa: S603  a program that the caller found, no shell
                list(command),
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=complaints,
                start_new_session=True,
            )
        except OSError as err:
            raise PinwardenError(
                "RESOLVER_FAILED", f"{command[0]} could not be started: {err.strerror or err}"
            ) from err
        tree = ProcessTree(process)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired as err:
            raise PinwardenError(
                "RESOLVER_FAILED", f"{Path(command[0]).name} did not finish within {seconds:g} seconds"
            ) from err
        finally:
            tree.end(1.0, at_once=True)
        if code != 0:
            name = Path(command[0]).name
            raise PinwardenError(
                "RESOLVER_FAILED", f"{name} failed with exit code {code}", data={"stderr": _end_of(complaints, secrets)}
            )
        out.seek(0)
        return out.read(_MAX_OUTPUT)


def _end_of(stream: object, secrets: Sequence[str]) -> str:
    stream.seek(0, 2)  # type: ignore[attr-defined]
    stream.seek(max(0, stream.tell() - _KEPT_BYTES))  # type: ignore[attr-defined]
    text: str = stream.read().decode("utf-8", "replace")  # type: ignore[attr-defined]
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text


def check_address(index: Endpoint, variables: Mapping[str, str], *, allow_plain_http: bool = False) -> None:
    """Refuse a registry that our own client would not ask: a resolver asks whatever address it is given."""
    if proxy_for(index.address, variables) is not None:
        return  # the proxy looks the name up
    rules = NetworkRules(allow_private=index.private_allowed, allow_plain_http=allow_plain_http)
    try:
        destinations(index.address, rules)
    except HostNotFoundError as err:
        raise unfetched("connect", f"the host {index.address.host} was not found") from err
