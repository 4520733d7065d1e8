"""A server's description of itself: which parts the client gets, and which requests the server must not get."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from typing import Any

from pinwarden.gateway.gates.server import (
    CAPABILITY_OF_METHOD,
    approved_capabilities,
    extensions_of,
    needs_unapproved_capability,
)
from pinwarden.gateway.gates.verdict import WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session import splice
from pinwarden.gateway.session.lists import server_info
from pinwarden.gateway.session.messages import META_KEYS
from pinwarden.gateway.session.output import OutputBuilder, SessionAudit
from pinwarden.gateway.session.pages import cache_edits, warning_edit
from pinwarden.surface.protocol import META, VERSION_META

INTERCEPTORS = f"{META}interceptors"


class CheckedServer:
    """The verdicts about the server itself: its name, its capabilities, and its instructions."""

    def __init__(self, guard: Guard, audit: SessionAudit) -> None:
        self.info: dict[str, Any] | None = None
        """The server's description of itself, unfiltered."""
        self.version = ""
        """The protocol revision, once it is negotiated."""
        self.clear_epoch = -1
        """The guard's epoch in which everything about the server passed; -1 if something did not."""
        self._guard = guard
        self._audit = audit
        self._verdicts: dict[str, Verdict] = {}
        self._epoch = -1

    def check(self, info: dict[str, Any], out: OutputBuilder) -> None:
        """Check the server's description of itself."""
        self.info = info
        self.invalidate()
        self._check_if_outdated(out)

    def invalidate(self) -> None:
        """Check again at the next use, because the verdicts could not be recorded."""
        self._epoch = self.clear_epoch = -1

    @property
    def is_refused(self) -> bool:
        """Whether the whole server is refused, so that the gateway requests nothing from it."""
        identity = self._verdicts.get("serverInfo")
        return identity is not None and not identity.passes

    def refusal(self, out: OutputBuilder) -> Verdict | None:
        """Why the whole server is refused; None if it is not. Raises if the approvals cannot be read."""
        self._check_if_outdated(out)
        return self._verdicts["serverInfo"] if self.is_refused else None

    def refusal_of(self, method: str, out: OutputBuilder) -> Verdict | None:
        """Why the server must not get requests with this method; None if it may."""
        identity = self.refusal(out)
        if identity is not None:
            return identity
        offered = self._verdicts.get("capabilities")
        if offered is None or offered.passes:
            return None
        if not isinstance(offered.value, dict):
            # Malformed capabilities offer nothing.
            return offered if method.partition("/")[0] in CAPABILITY_OF_METHOD else None
        return offered if needs_unapproved_capability(method, offered.value, self._approved_capabilities()) else None

    def has_extension(self, extension: str, out: OutputBuilder) -> bool:
        """Whether the server has a protocol extension that is approved."""
        self._check_if_outdated(out)
        offered = self._verdicts.get("capabilities")
        passes = offered is None or offered.passes
        return extension in extensions_of(
            (self.info or {}).get("capabilities") if passes else self._approved_capabilities()
        )

    def filter_response(self, data: bytes, result: Mapping[str, Any], ttl: int, out: OutputBuilder) -> bytes | Verdict:
        """Filter the response to ``initialize`` or ``server/discover``, or return why the server is refused."""
        version = result.get("protocolVersion")
        if isinstance(version, str):
            self.version = version
        self.check(server_info(result), out)
        if self.is_refused:
            return self._verdicts["serverInfo"]
        announces = self._guard.policy.announces_interceptors(self._guard.server, self._audit.client)
        return self._edit_response(
            data, ttl, announces_interceptors=announces and not self.has_extension(INTERCEPTORS, out)
        )

    def _check_if_outdated(self, out: OutputBuilder) -> None:
        epoch = self._guard.epoch  # read first: another thread may change the approved surface meanwhile
        if self.info is None or self._epoch == epoch or self._guard.approved is None:
            return
        verdicts = self._guard.check_server(self.info, self._audit.client)
        self._verdicts = {verdict.key: verdict for verdict in verdicts}
        for verdict in verdicts:
            self._audit.record_definition(verdict, "initialize" if self.version else "server/discover", out)
        self.clear_epoch = epoch if all(verdict.passes for verdict in verdicts) else -1
        self._epoch = epoch

    def _edit_response(self, data: bytes, ttl: int, *, announces_interceptors: bool) -> bytes:
        text = data.decode()
        result = splice.find_member(text, 0, "result")
        if result is None:
            return data
        edits = cache_edits(text, result.start, ttl)
        instructions = self._verdicts.get("instructions")
        if instructions is not None and not instructions.passes:
            edits += splice.without_members(text, result.start, ("instructions",))
        edits += self._capability_edits(text, result.start, announces_interceptors=announces_interceptors)
        warnings = [verdict for verdict in self._verdicts.values() if verdict.action == WARN]
        if warnings:
            edits.append(warning_edit(text, result.start, warnings))
        return splice.apply_edits(text, edits).encode() if edits else data

    def _capability_edits(self, text: str, result: int, *, announces_interceptors: bool) -> list[splice.Edit]:
        """Reduce the capabilities to the approved ones, and announce the gateway's interceptors if the policy says."""
        offered = self._verdicts.get("capabilities")
        span = splice.find_member(text, result, "capabilities")
        if span is None:
            return []
        if offered is not None and not offered.passes:
            capabilities = self._approved_capabilities()
            if announces_interceptors:
                capabilities["extensions"] = {**extensions_of(capabilities), INTERCEPTORS: _interceptor_capability()}
            return [(span.start, span.end, dumps(capabilities, separators=(",", ":")))]
        if not announces_interceptors or text[span.start] != "{":
            return []
        interceptors = dumps(_interceptor_capability(), separators=(",", ":"))
        extensions = splice.find_member(text, span.start, "extensions")
        if extensions is None:
            return [splice.with_member(text, span.start, "extensions", f'{{"{INTERCEPTORS}":{interceptors}}}')]
        if text[extensions.start] != "{":
            return [(extensions.start, extensions.end, f'{{"{INTERCEPTORS}":{interceptors}}}')]
        return [splice.with_member(text, extensions.start, INTERCEPTORS, interceptors)]

    def _approved_capabilities(self) -> dict[str, Any]:
        approved = self._guard.approved
        offered = (self.info or {}).get("capabilities")
        return {} if approved is None else approved_capabilities(offered, approved.surface)


def _interceptor_capability() -> dict[str, Any]:
    """The capability of an interceptor host (SEP-2624)."""
    from pinwarden.gateway.interceptors import EVENTS

    return {"supportedEvents": list(EVENTS)}


def stateless_meta(params: Any) -> dict[str, Any] | None:
    """The client description in a request of the stateless era; None for a request of the handshake era."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or VERSION_META not in meta:
        return None
    return {name: meta[name] for name in META_KEYS if name in meta}
