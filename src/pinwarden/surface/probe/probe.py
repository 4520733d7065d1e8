"""Asking a live MCP server for its complete surface.

Nothing is run without consent, nothing private is contacted without permission, and whatever a server does, the
probe ends within its time with a surface or an error.
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
from pinwarden.surface.probe.session import ClientIdentity, Opening, Session, no_answer
from pinwarden.surface.surface import Surface
from pinwarden.system.environment_variables import child_environment
from pinwarden.system.masking import mask_words
from pinwarden.system.probe_budget import ProbeBudget, ProbeLimits, probe_failed
from pinwarden.system.sandbox import Sandbox, sandboxed
from pinwarden.system.target import (
    HttpAddress,
    HttpTarget,
    StdioTarget,
    Target,
    expand_placeholders,
    placeholder_names,
    placeholder_values,
)

_MOST_WORKERS = 32  # servers spend most of their time starting; more at once only adds memory
_DENIED = frozenset({401, 403})


class ProbeOptions(Record):
    """What a probe may do, and its identity."""

    allow_execute: bool = False
    """Whether the command of a stdio target may be run."""
    client: ClientIdentity = field(default_factory=ClientIdentity)
    timeout: float = 60.0
    """Seconds for one whole probe. A package runner that has to download first takes 20 and more."""
    allow_private: bool = False
    """Whether the host of a target may be at a private or local address."""
    allow_plain_http: bool = False
    """Whether http:// may be used beyond this machine."""
    allow_redirects: bool = False
    env_allow: tuple[str, ...] = ()
    """Names of further variables that a command inherits."""
    send_only: tuple[str, ...] | None = None
    """Names of the variables that may be filled into an address and its headers; None if the target is the user's own
    words. A file can come from anybody, and so can the host that it names."""
    sandbox: Sandbox | None = None
    limits: ProbeLimits = field(default_factory=ProbeLimits)


class Progress(Record):
    """One more probe of many is done."""

    index: int
    done: int
    total: int


def probe(target: Target, options: ProbeOptions | None = None) -> Surface:
    """The complete surface of one server."""
    return _probe(target, options or ProbeOptions(), _OpenWires())


def probe_as_two_clients(
    target: Target, options: ProbeOptions, other_identity: ClientIdentity
) -> tuple[Surface, Surface]:
    """The surface that a server shows to the client of the options, and the one it shows to another client."""
    return probe(target, options), probe(target, replace(options, client=other_identity))


def probe_all(
    targets: Sequence[Target],
    options: ProbeOptions | Sequence[ProbeOptions] | None = None,
    *,
    workers: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[Surface | PinwardenError]:
    """Probe many servers at once. The results are in the order of the targets; an error stands in its place.

    The options are the same for all, or one for each target. ``on_progress`` is called in the calling thread.
    """
    from concurrent.futures import ThreadPoolExecutor, as_completed

    if not targets:
        return []
    wires = _OpenWires()
    each = options if isinstance(options, Sequence) else [options or ProbeOptions()] * len(targets)
    pool = ThreadPoolExecutor(workers or min(len(targets), _MOST_WORKERS), thread_name_prefix="probe")
    try:
        futures = {
            pool.submit(_outcome, target, own, wires): place
            for place, (target, own) in enumerate(zip(targets, each, strict=True))
        }
        found: dict[int, Surface | PinwardenError] = {}
        for future in as_completed(futures):
            place = futures[future]
            found[place] = future.result()
            if on_progress is not None:
                on_progress(Progress(index=place, done=len(found), total=len(targets)))
        return [found[place] for place in range(len(targets))]
    except BaseException:
        wires.abort()  # an interrupt must leave no server behind
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class _OpenWires:
    """The wires of running probes, so that an interrupt can end them all."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._wires: set[ProbeTransport] = set()
        self._aborted = False

    @contextmanager
    def hold(self, wire: ProbeTransport) -> Iterator[None]:
        """Close the wire at the end, whatever happens."""
        try:
            with self._lock:
                self._wires.add(wire)
                stopped = self._aborted
            if stopped:
                wire.abort()
                raise probe_failed("ended", "the probe was stopped")
            yield
        finally:
            wire.close()
            with self._lock:
                self._wires.discard(wire)

    def abort(self) -> None:
        """End everything that runs, and whatever comes later."""
        with self._lock:
            self._aborted = True
            wires = list(self._wires)
        for wire in wires:
            wire.abort()

    @property
    def aborted(self) -> bool:
        """Whether nothing new may be started."""
        return self._aborted


def _outcome(target: Target, options: ProbeOptions, wires: _OpenWires) -> Surface | PinwardenError:
    try:
        return _probe(target, options, wires)
    except PinwardenError as err:
        return err


def _probe(target: Target, options: ProbeOptions, wires: _OpenWires) -> Surface:
    if wires.aborted:
        raise probe_failed("ended", "the probe was stopped")
    if isinstance(target, StdioTarget):
        surface = _probe_stdio(target, options, wires)
    else:
        surface = _probe_http(target, options, wires)
    refuse_echoed_secrets(surface, given_to(target, options))
    return surface


def given_to(target: Target, options: ProbeOptions) -> Iterator[tuple[str, str]]:
    """The variables, headers and parameters that a server gets, with the values that it gets."""
    named, texts = (
        (target.env, (*target.command, target.cwd or ""))
        if isinstance(target, StdioTarget)
        else (target.headers, (target.url,))
    )
    yield from ((name, expand_placeholders(text, os.environ)) for name, text in named.items())
    for text in (*named.values(), *texts):
        yield from placeholder_values(text, os.environ)
    if isinstance(target, StdioTarget):
        yield from ((name, os.environ[name]) for name in options.env_allow if name in os.environ)
    else:
        yield from parse_qsl(expand_placeholders(target.url, os.environ).partition("?")[2])


def _probe_stdio(target: StdioTarget, options: ProbeOptions, wires: _OpenWires) -> Surface:
    if not options.allow_execute:
        raise PinwardenError("CONSENT_REQUIRED", f"not run without consent: {_shown_command(target.command)}")
    from pinwarden.surface.probe.stdio import Launch, StdioWire

    variables = os.environ
    own = {name: expand_placeholders(value, variables) for name, value in target.env.items()}
    command = tuple(expand_placeholders(word, variables) for word in target.command)
    cwd = None if target.cwd is None else expand_placeholders(target.cwd, variables)
    environment = child_environment(own, variables, options.env_allow)
    mask = _mask((*target.command, target.cwd or ""), (*own.values(), *_inherited(options.env_allow)))
    wire: StdioWire | None = None
    try:
        if options.sandbox is not None:
            command = tuple(sandboxed(command, environment, cwd, options.sandbox))
        allowance = ProbeBudget(options.limits, options.timeout)
        wire = StdioWire(Launch(command=command, environment=environment, cwd=cwd), allowance)
        with wires.hold(wire):
            surface = _converse(wire, options, allowance, discover=True)
    except PinwardenError as err:
        # The wire is closed here, so that all the server wrote is there.
        tail = "" if wire is None else mask.text(wire.stderr_tail())
        raise mask.error(err, {"stderr": _lines_shown(tail)} if tail else {}) from err
    if isinstance(surface, NoMessage):
        tail = mask.text(wire.stderr_tail())
        raise mask.error(no_answer("initialize", surface), {"stderr": _lines_shown(tail)} if tail else {})
    return surface


def _shown_command(command: Sequence[str]) -> str:
    return show_invisible(" ".join(mask_words(command)))


def _probe_http(target: HttpTarget, options: ProbeOptions, wires: _OpenWires) -> Surface:
    from pinwarden.surface.probe.http_transports import SseWire, StreamableWire
    from pinwarden.system.net.connections import NetworkRules
    from pinwarden.system.net.http_client import HttpOptions

    _check_sent(target, options)
    filled = HttpTarget(
        url=expand_placeholders(target.url, os.environ),
        headers={name: expand_placeholders(value, os.environ) for name, value in target.headers.items()},
        transport=target.transport,
    )
    http = HttpOptions(
        address=HttpAddress.parse(filled.url),
        headers=filled.headers,
        rules=NetworkRules(allow_private=options.allow_private, allow_plain_http=options.allow_plain_http),
        allow_redirects=options.allow_redirects,
    )
    allowance = ProbeBudget(options.limits, options.timeout)
    mask = _mask((target.url,), (*filled.headers.values(), http.address.path.partition("?")[2]))
    try:
        refused: NoMessage | None = None
        if target.transport != "sse":
            streamable = StreamableWire(http, allowance)
            with wires.hold(streamable):
                answer = _converse(streamable, options, allowance, discover=True)
            if isinstance(answer, Surface):
                return answer
            refused = answer
            if target.transport != "auto" or refused.status is None or refused.status in _DENIED:
                raise no_answer("initialize", refused)
        sse = SseWire(http, allowance)
        with wires.hold(sse):
            answer = _converse(sse, options, allowance, discover=False)
        if isinstance(answer, NoMessage):
            raise no_answer("initialize", answer)
        return answer
    except PinwardenError as err:
        raise mask.error(err, {}) from err


def _check_sent(target: HttpTarget, options: ProbeOptions) -> None:
    """Refuse to send variables to a host from a file unless the user named them."""
    if options.send_only is None:
        return
    texts = (target.url, *target.headers.values())
    named = {name for text in texts for name in placeholder_names(text)}
    kept = sorted(name for name in named - set(options.send_only) if name in os.environ)
    if kept:
        host = show_invisible(target.url.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2])
        raise PinwardenError(
            "CONSENT_REQUIRED",
            f"not sent to {host[:200]} without consent: the variables {', '.join(kept)[:400]}",
            hint=f"If that host may have them, add {' '.join(f'--pass-env {name}' for name in kept)}.",
            data={"host": host, "variables": kept},
        )


def _converse(
    wire: ProbeTransport, options: ProbeOptions, allowance: ProbeBudget, *, discover: bool
) -> Surface | NoMessage:
    """1. Find the era. 2. Read every list. 3. Put down what was seen, and how."""
    session = Session(wire, options.client, allowance)
    opening = session.open(discover=discover)
    if isinstance(opening, NoMessage):
        return opening
    lists, unsettled = session.lists(opening)
    observed = _observed(wire, options.client, opening)
    observed["pages"] = {kind.member: listing.pages for kind, listing in lists.items()}
    if session.noise_lines:
        observed["noiseLines"] = session.noise_lines
    if unsettled:
        observed["unsettled"] = unsettled
    items = {kind.member: listing.items for kind, listing in lists.items()}
    return Surface(server=opening.server, items=items, observed=observed)


def _observed(wire: ProbeTransport, client: ClientIdentity, opening: Opening) -> dict[str, Any]:
    return {
        "client": client.to_json(),
        "era": opening.era,
        "protocolVersion": opening.version,
        "transport": wire.transport,
    }


def _mask(texts: Sequence[str], secrets: Sequence[str]) -> SecretMask:
    """Masks values that were given as secrets, and whatever placeholders stood for."""
    filled: list[str] = []
    for text in texts:
        with suppress(PinwardenError):
            filled += [value for _, value in placeholder_values(text, os.environ)]
    return SecretMask([*filled, *secrets])


def _inherited(names: Sequence[str]) -> list[str]:
    variables: Mapping[str, str] = os.environ
    return [variables[name] for name in names if name in variables]


def _lines_shown(text: str) -> str:
    """What the server wrote, with its line breaks and without anything that could steer a terminal."""
    return "\n".join(show_invisible(line) for line in text.splitlines())
