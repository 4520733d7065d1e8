"""Checks a server's description of itself: removes unapproved parts, and refuses requests that need them."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from typing import Any

from pinwarden.gateway.gates.server import (
    CAPABILITY_OF_METHOD,
    needs_unapproved_capability,
    read_extensions,
    select_approved_capabilities,
)
from pinwarden.gateway.gates.verdict import WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.session import splice
from pinwarden.gateway.session.lists import read_server_info
from pinwarden.gateway.session.messages import META_KEYS
from pinwarden.gateway.session.output import OutputBuilder, SessionAudit
from pinwarden.gateway.session.pages import build_cache_edits, build_warning_edit
from pinwarden.surface.protocol import META, VERSION_META

INTERCEPTORS = f"{META}interceptors"


class CheckedServer:
    """The verdicts about the server itself: its name, its capabilities, and its instructions."""

    def __init__(self, guard: Guard, audit: SessionAudit) -> None:
        self.info: dict[str, Any] | None = None
        """The server's description of itself, unfiltered."""
        self.version = ""
        """The protocol revision, once it is negotiated."""
        self.passing_epoch = -1
        """The guard's epoch in which every verdict about the server passed; -1 if one did not."""
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
        """Discard the verdicts. The description is checked again when it is used next."""
        self._epoch = self.passing_epoch = -1

    @property
    def is_refused(self) -> bool:
        """Whether the whole server is refused, so that the gateway requests nothing from it."""
        identity = self._verdicts.get("serverInfo")
        return identity is not None and not identity.passes

    def find_refusal(self, out: OutputBuilder) -> Verdict | None:
        """Return the verdict that refuses the whole server, or None. Raises if the approvals cannot be read."""
        self._check_if_outdated(out)
        return self._verdicts["serverInfo"] if self.is_refused else None

    def find_method_refusal(self, method: str, out: OutputBuilder) -> Verdict | None:
        """Return the verdict that refuses requests with this method; None if the server may get them."""
        identity = self.find_refusal(out)
        if identity is not None:
            return identity
        offered = self._verdicts.get("capabilities")
        if offered is None or offered.passes:
            return None
        if not isinstance(offered.value, dict):
            # Malformed capabilities count as none, so every method that needs a capability is refused.
            return offered if method.partition("/")[0] in CAPABILITY_OF_METHOD else None
        return (
            offered
            if needs_unapproved_capability(method, offered.value, self._select_approved_capabilities())
            else None
        )

    def has_extension(self, extension: str, out: OutputBuilder) -> bool:
        """Whether the server has a protocol extension that is approved."""
        self._check_if_outdated(out)
        offered = self._verdicts.get("capabilities")
        passes = offered is None or offered.passes
        return extension in read_extensions(
            (self.info or {}).get("capabilities") if passes else self._select_approved_capabilities()
        )

    def filter_response(self, data: bytes, result: Mapping[str, Any], ttl: int, out: OutputBuilder) -> bytes | Verdict:
        """Filter the response to ``initialize`` or ``server/discover``. Returns a verdict if the server is refused."""
        version = result.get("protocolVersion")
        if isinstance(version, str):
            self.version = version
        self.check(read_server_info(result), out)
        if self.is_refused:
            return self._verdicts["serverInfo"]
        announces = self._guard.policy.announces_interceptors(self._guard.server, self._audit.client.name)
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
        self.passing_epoch = epoch if all(verdict.passes for verdict in verdicts) else -1
        self._epoch = epoch

    def _edit_response(self, data: bytes, ttl: int, *, announces_interceptors: bool) -> bytes:
        text = data.decode()
        result = splice.find_member(text, 0, "result")
        if result is None:
            return data
        edits = build_cache_edits(text, result.start, ttl)
        instructions = self._verdicts.get("instructions")
        if instructions is not None and not instructions.passes:
            edits += splice.build_member_removals(text, result.start, ("instructions",))
        edits += self._build_capability_edits(text, result.start, announces_interceptors=announces_interceptors)
        warnings = [verdict for verdict in self._verdicts.values() if verdict.action == WARN]
        if warnings:
            edits.append(build_warning_edit(text, result.start, warnings))
        return splice.apply_edits(text, edits).encode() if edits else data

    def _build_capability_edits(self, text: str, result: int, *, announces_interceptors: bool) -> list[splice.Edit]:
        """Return the edits that remove unapproved capabilities and announce the gateway's interceptors."""
        offered = self._verdicts.get("capabilities")
        span = splice.find_member(text, result, "capabilities")
        if span is None:
            return []
        if offered is not None and not offered.passes:
            capabilities = self._select_approved_capabilities()
            if announces_interceptors:
                capabilities["extensions"] = {
                    **read_extensions(capabilities),
                    INTERCEPTORS: _build_interceptor_capability(),
                }
            return [(span.start, span.end, dumps(capabilities, separators=(",", ":")))]
        if not announces_interceptors or text[span.start] != "{":
            return []
        interceptors = dumps(_build_interceptor_capability(), separators=(",", ":"))
        extensions = splice.find_member(text, span.start, "extensions")
        if extensions is None:
            return [
                splice.build_member_insertion(text, span.start, "extensions", f'{{"{INTERCEPTORS}":{interceptors}}}')
            ]
        if text[extensions.start] != "{":
            return [(extensions.start, extensions.end, f'{{"{INTERCEPTORS}":{interceptors}}}')]
        return [splice.build_member_insertion(text, extensions.start, INTERCEPTORS, interceptors)]

    def _select_approved_capabilities(self) -> dict[str, Any]:
        approved = self._guard.approved
        offered = (self.info or {}).get("capabilities")
        return {} if approved is None else select_approved_capabilities(offered, approved.surface)


def _build_interceptor_capability() -> dict[str, Any]:
    """Return the capability that announces an interceptor host (SEP-2624)."""
    from pinwarden.gateway.interceptors import EVENTS

    return {"supportedEvents": list(EVENTS)}


def read_stateless_meta(params: Any) -> dict[str, Any] | None:
    """Return the ``_meta`` members that describe the client in the stateless era; None in the handshake era."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or VERSION_META not in meta:
        return None
    return {name: meta[name] for name in META_KEYS if name in meta}
