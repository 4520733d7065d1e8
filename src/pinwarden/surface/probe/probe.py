"""Probe a live MCP server, that is, read its complete surface.

A probe starts commands and contacts private addresses only if its options allow it. Every probe ends within its time
limit, with a surface or an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field, replace
from pinwarden.core.text import show_invisible
from pinwarden.surface.probe.message import NoMessage, ProbeTransport
from pinwarden.surface.probe.secret_mask import SecretMask, refuse_echoed_secrets
from pinwarden.surface.probe.session import ClientIdentity, NegotiatedSession, ProbeSession, build_no_response_error
from pinwarden.surface.surface import Surface
from pinwarden.system.environment_variables import build_child_environment
from pinwarden.system.masking import mask_words
from pinwarden.system.probe_budget import PROBE_SECONDS, ProbeBudget, ProbeLimits, probe_error
from pinwarden.system.sandbox import Sandbox, build_sandbox_command
from pinwarden.system.secret_variables import load_variables
from pinwarden.system.target import (
    HttpAddress,
    HttpTarget,
    StdioTarget,
    Target,
    expand_placeholders,
    find_placeholder_names,
    find_placeholder_values,
)

_MAX_WORKERS = 32  # more parallel probes need more memory and save little time
_DENIED_STATUSES = frozenset({401, 403})


class ProbeOptions(Record):
    """The permissions and limits of a probe, and the client that it identifies as."""

    allow_execute: bool = False
    """Whether the probe may run the command of a stdio server."""
    client: ClientIdentity = field(default_factory=ClientIdentity)
    timeout: float = PROBE_SECONDS
    """Seconds for one complete probe."""
    allow_private: bool = False
    """Whether the probe may contact private and local IP addresses."""
    allow_plain_http: bool = False
    """Whether the probe may use http:// for hosts other than this machine."""
    allow_redirects: bool = False
    env_allow: tuple[str, ...] = ()
    """Names of environment variables that the command inherits in addition to the default variables."""
    send_only: tuple[str, ...] | None = None
    """Names of the environment variables that may be sent in the URL and headers; None allows all.

    Use None only for a target that the user typed. The host in a configuration file could be an attacker's.
    """
    sandbox: Sandbox | None = None
    limits: ProbeLimits = field(default_factory=ProbeLimits)


class ProbeProgress(Record):
    """The progress that `probe_all` reports after each finished probe."""

    index: int
    done: int
    total: int


def probe(target: Target, options: ProbeOptions | None = None) -> Surface:
    """Read the complete surface of one server."""
    return _probe(target, options or ProbeOptions(), _OpenTransports())


def probe_as_two_clients(
    target: Target, options: ProbeOptions, other_identity: ClientIdentity
) -> tuple[Surface, Surface]:
    """Probe a server twice: as the client in ``options``, and as ``other_identity``. Returns both surfaces."""
    return probe(target, options), probe(target, replace(options, client=other_identity))


def probe_all(
    targets: Sequence[Target],
    options: ProbeOptions | Sequence[ProbeOptions] | None = None,
    *,
    workers: int | None = None,
    on_progress: Callable[[ProbeProgress], None] | None = None,
) -> list[Surface | PinwardenError]:
    """Probe many servers in parallel. Returns a surface or an error for each target, in order.

    ``options`` are for all targets, or a sequence with one element per target. ``on_progress`` is called in the calling
    thread.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    if not targets:
        return []
    transports = _OpenTransports()
    per_target = options if isinstance(options, Sequence) else [options or ProbeOptions()] * len(targets)
    pool = ThreadPoolExecutor(workers or min(len(targets), _MAX_WORKERS), thread_name_prefix="probe")
    try:
        futures = {
            pool.submit(_probe_or_error, target, target_options, transports): index
            for index, (target, target_options) in enumerate(zip(targets, per_target, strict=True))
        }
        results: dict[int, Surface | PinwardenError] = {}
        for future in as_completed(futures):
            index = futures[future]
            results[index] = future.result()
            if on_progress is not None:
                on_progress(ProbeProgress(index=index, done=len(results), total=len(targets)))
        return [results[index] for index in range(len(targets))]
    except BaseException:
        transports.abort()  # an interrupt must not leave servers running
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _OpenTransports:
    """The transports of all running probes, so that an interrupt can close them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._transports: set[ProbeTransport] = set()
        self._aborted = False

    @contextmanager
    def track(self, transport: ProbeTransport) -> Iterator[None]:
        """Register the transport, and close it at the end of the block."""
        try:
            with self._lock:
                self._transports.add(transport)
                aborted_before = self._aborted
            if aborted_before:
                transport.abort()
                raise probe_error("ended", "the probe was stopped")
            yield
        finally:
            transport.close()
            with self._lock:
                self._transports.discard(transport)

    def abort(self) -> None:
        """End all running probes, and prevent new probes."""
        with self._lock:
            self._aborted = True
            transports = list(self._transports)
        for transport in transports:
            transport.abort()

    @property
    def aborted(self) -> bool:
        """Whether `abort` was called."""
        return self._aborted


def _probe_or_error(target: Target, options: ProbeOptions, transports: _OpenTransports) -> Surface | PinwardenError:
    try:
        return _probe(target, options, transports)
    except PinwardenError as err:
        return err


def _probe(target: Target, options: ProbeOptions, transports: _OpenTransports) -> Surface:
    if transports.aborted:
        raise probe_error("ended", "the probe was stopped")
    if isinstance(target, StdioTarget):
        surface = _probe_stdio(target, options, transports)
    else:
        surface = _probe_http(target, options, transports)
    refuse_echoed_secrets(surface, list_sent_values(target, options))
    return surface


def list_sent_values(target: Target, options: ProbeOptions) -> Iterator[tuple[str, str]]:
    """Yield name and value of everything sent to the server that may be a secret.

    That is environment variables, headers, query parameters, and the values of placeholders.
    """
    variables, texts = (
        (target.env, (*target.command, target.cwd or ""))
        if isinstance(target, StdioTarget)
        else (target.headers, (target.url,))
    )
    available = load_variables()
    yield from ((name, expand_placeholders(text, available)) for name, text in variables.items())
    for text in (*variables.values(), *texts):
        yield from find_placeholder_values(text, available)
    if isinstance(target, StdioTarget):
        yield from ((name, os.environ[name]) for name in options.env_allow if name in os.environ)
    else:
        yield from parse_qsl(expand_placeholders(target.url, available).partition("?")[2])


def _probe_stdio(target: StdioTarget, options: ProbeOptions, transports: _OpenTransports) -> Surface:
    if not options.allow_execute:
        command_text = _format_command(target.command)
        raise PinwardenError("CONSENT_REQUIRED", f"Pinwarden does not run this command without consent: {command_text}")
    from pinwarden.surface.probe.stdio import StdioCommand, StdioTransport

    variables = load_variables()
    target_env = {name: expand_placeholders(value, variables) for name, value in target.env.items()}
    command = tuple(expand_placeholders(word, variables) for word in target.command)
    cwd = None if target.cwd is None else expand_placeholders(target.cwd, variables)
    environment = build_child_environment(target_env, os.environ, options.env_allow)
    mask = _build_secret_mask(
        (*target.command, target.cwd or ""), (*target_env.values(), *_get_inherited_values(options.env_allow))
    )
    transport: StdioTransport | None = None
    try:
        if options.sandbox is not None:
            command = tuple(build_sandbox_command(command, environment, cwd, options.sandbox))
        budget = ProbeBudget(options.limits, options.timeout)
        transport = StdioTransport(StdioCommand(words=command, environment=environment, cwd=cwd), budget)
        with transports.track(transport):
            surface = _read_surface(transport, options, budget, discover=True)
    except PinwardenError as err:
        # The transport is closed at this point, so the stderr of the server is complete.
        tail = "" if transport is None else mask.mask_text(transport.read_stderr_tail())
        raise mask.mask_error(err, {"stderr": _format_lines(tail)} if tail else {}) from err
    if isinstance(surface, NoMessage):
        tail = mask.mask_text(transport.read_stderr_tail())
        raise mask.mask_error(
            build_no_response_error("initialize", surface), {"stderr": _format_lines(tail)} if tail else {}
        )
    return surface


def _format_command(command: Sequence[str]) -> str:
    return show_invisible(" ".join(mask_words(command)))


def _probe_http(target: HttpTarget, options: ProbeOptions, transports: _OpenTransports) -> Surface:
    from pinwarden.surface.probe.http_transports import SseTransport, StreamableHttpTransport
    from pinwarden.system.net.connections import NetworkRules
    from pinwarden.system.net.http_client import HttpOptions

    _refuse_unlisted_variables(target, options)
    variables = load_variables()
    expanded = HttpTarget(
        url=expand_placeholders(target.url, variables),
        headers={name: expand_placeholders(value, variables) for name, value in target.headers.items()},
        transport=target.transport,
    )
    http = HttpOptions(
        address=HttpAddress.parse(expanded.url),
        headers=expanded.headers,
        rules=NetworkRules(allow_private=options.allow_private, allow_plain_http=options.allow_plain_http),
        allow_redirects=options.allow_redirects,
    )
    budget = ProbeBudget(options.limits, options.timeout)
    mask = _build_secret_mask((target.url,), (*expanded.headers.values(), http.address.path.partition("?")[2]))
    try:
        refused: NoMessage | None = None
        if target.transport != "sse":
            streamable = StreamableHttpTransport(http, budget)
            with transports.track(streamable):
                outcome = _read_surface(streamable, options, budget, discover=True)
            if isinstance(outcome, Surface):
                return outcome
            refused = outcome
            if target.transport != "auto" or refused.status is None or refused.status in _DENIED_STATUSES:
                raise build_no_response_error("initialize", refused)
        sse = SseTransport(http, budget)
        with transports.track(sse):
            outcome = _read_surface(sse, options, budget, discover=False)
        if isinstance(outcome, NoMessage):
            raise build_no_response_error("initialize", outcome)
        return outcome
    except PinwardenError as err:
        raise mask.mask_error(err, {}) from err


def _refuse_unlisted_variables(target: HttpTarget, options: ProbeOptions) -> None:
    """Refuse to send environment variables that ``send_only`` does not list."""
    if options.send_only is None:
        return
    texts = (target.url, *target.headers.values())
    placeholders = {name for text in texts for name in find_placeholder_names(text)}
    unnamed = sorted(placeholders & load_variables().keys() - set(options.send_only))
    if unnamed:
        host = show_invisible(target.url.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2])
        raise PinwardenError(
            "CONSENT_REQUIRED",
            f"Pinwarden does not send these variables to {host[:200]} without consent: {', '.join(unnamed)[:400]}",
            hint=f"To send them to this host, add {' '.join(f'--pass-env {name}' for name in unnamed)}.",
            data={"host": host, "variables": unnamed},
        )


def _read_surface(
    transport: ProbeTransport, options: ProbeOptions, budget: ProbeBudget, *, discover: bool
) -> Surface | NoMessage:
    """Find the protocol era, and read every list over an open transport.

    Returns `NoMessage` if the server does not respond to ``initialize``.
    """
    session = ProbeSession(transport, options.client, budget)
    negotiated = session.open(discover=discover)
    if isinstance(negotiated, NoMessage):
        return negotiated
    lists, unsettled = session.read_lists(negotiated)
    observed = _build_metadata(transport, options.client, negotiated)
    observed["pages"] = {kind.member: item_list.pages for kind, item_list in lists.items()}
    if session.noise_lines:
        observed["noiseLines"] = session.noise_lines
    if unsettled:
        observed["unsettled"] = unsettled
    items = {kind.member: item_list.items for kind, item_list in lists.items()}
    return Surface(server=negotiated.server, items=items, observed=observed)


def _build_metadata(transport: ProbeTransport, client: ClientIdentity, negotiated: NegotiatedSession) -> dict[str, Any]:
    return {
        "client": client.to_json(),
        "era": negotiated.era,
        "protocolVersion": negotiated.version,
        "transport": transport.name,
    }


def _build_secret_mask(texts: Sequence[str], secrets: Sequence[str]) -> SecretMask:
    """Build a mask for these secrets and for the values of the placeholders in ``texts``."""
    expanded: list[str] = []
    for text in texts:
        with suppress(PinwardenError):
            expanded += [value for _, value in find_placeholder_values(text, load_variables())]
    return SecretMask([*expanded, *secrets])


def _get_inherited_values(names: Sequence[str]) -> list[str]:
    variables: Mapping[str, str] = os.environ
    return [variables[name] for name in names if name in variables]


def _format_lines(text: str) -> str:
    """Format output of the server for display: line breaks stay, other control characters become visible."""
    return "\n".join(show_invisible(line) for line in text.splitlines())
