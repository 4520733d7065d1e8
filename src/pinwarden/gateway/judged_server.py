"""The answer in which a server says who it is: what passes of it, and what it is barred from afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from typing import Any

from pinwarden.gateway import splice
from pinwarden.gateway.gates.server import (
    CAPABILITY_OF_METHOD,
    approved_capabilities,
    extensions_of,
    unapproved,
)
from pinwarden.gateway.gates.verdict import WARN, Verdict
from pinwarden.gateway.guard import Guard
from pinwarden.gateway.judged_lists import server_facts
from pinwarden.gateway.messages import META_KEYS
from pinwarden.gateway.pages import cache_edits, warning_edit
from pinwarden.gateway.session_audit import OutputBuilder, SessionAudit
from pinwarden.surface.protocol import META, VERSION_META

INTERCEPTORS = f"{META}interceptors"


class JudgedServer:
    """What was decided about the server as such."""

    def __init__(self, guard: Guard, journal: SessionAudit) -> None:
        self.facts: dict[str, Any] | None = None
        self.version = ""
        """The revision of the protocol, once it is agreed on."""
        self._guard = guard
        self._journal = journal
        self._verdicts: dict[str, Verdict] = {}
        self._epoch = -1
        self._clear = False

    def learn(self, facts: dict[str, Any], out: OutputBuilder) -> None:
        """Judge what the server says of itself."""
        self.facts = facts
        self._epoch = -1
        self._look(out)

    def judge_anew(self) -> None:
        """What was judged was not recorded: it is judged, and told, once more."""
        self._epoch = -1

    @property
    def is_refused(self) -> bool:
        """Whether the server as a whole is refused, so that it is asked nothing."""
        identity = self._verdicts.get("serverInfo")
        return identity is not None and not identity.passes

    @property
    def is_clear(self) -> bool:
        """Whether the server as such was judged by the measure of now, and is barred from nothing."""
        return self._epoch == self._guard.epoch and self._clear

    def identity(self, out: OutputBuilder) -> Verdict | None:
        """Why the server is refused as a whole; None if it is not. Raises if what was approved cannot be read."""
        self._look(out)
        found = self._verdicts.get("serverInfo")
        return None if found is None or found.passes else found

    def barred(self, method: str, out: OutputBuilder) -> Verdict | None:
        """Why a request may not go to this server at all: it is not who it was, or may not do this."""
        identity = self.identity(out)
        if identity is not None:
            return identity
        offered = self._verdicts.get("capabilities")
        if offered is None or offered.passes:
            return None
        if not isinstance(offered.value, dict):
            # Whatever it is, it says of nothing that it is offered.
            return offered if method.partition("/")[0] in CAPABILITY_OF_METHOD else None
        return offered if unapproved(method, offered.value, self._approved_capabilities()) else None

    def extends(self, extension: str, out: OutputBuilder) -> bool:
        """Whether the server has an extension of the protocol, and may have it."""
        self._look(out)
        offered = self._verdicts.get("capabilities")
        passes = offered is None or offered.passes
        return extension in extensions_of(
            (self.facts or {}).get("capabilities") if passes else self._approved_capabilities()
        )

    def passed_on(self, frame: bytes, result: Mapping[str, Any], ttl: int, out: OutputBuilder) -> bytes | Verdict:
        """The answer as the client gets it, or why it gets none."""
        version = result.get("protocolVersion")
        if isinstance(version, str):
            self.version = version
        self.learn(server_facts(result), out)
        identity = self._verdicts.get("serverInfo")
        if identity is not None and not identity.passes:
            return identity
        announced = self._guard.policy.announces(self._guard.server, self._journal.client)
        return self._edited(frame, ttl, announced=announced and not self.extends(INTERCEPTORS, out))

    def _look(self, out: OutputBuilder) -> None:
        epoch = self._guard.epoch  # before the measure is read, which another thread may change meanwhile
        if self.facts is None or self._epoch == epoch or self._guard.approved is None:
            return
        verdicts = self._guard.judge_server(self.facts, self._journal.client)
        self._verdicts = {verdict.key: verdict for verdict in verdicts}
        for verdict in verdicts:
            self._journal.served(verdict, "initialize" if self.version else "server/discover", out)
        self._clear = all(verdict.passes for verdict in verdicts)
        self._epoch = epoch

    def _edited(self, frame: bytes, ttl: int, *, announced: bool) -> bytes:
        text = frame.decode()
        result = splice.member(text, 0, "result")
        if result is None:
            return frame
        edits = cache_edits(text, result.start, ttl)
        instructions = self._verdicts.get("instructions")
        if instructions is not None and not instructions.passes:
            edits += splice.without_members(text, result.start, ("instructions",))
        edits += self._capability_edits(text, result.start, announced=announced)
        warnings = [verdict for verdict in self._verdicts.values() if verdict.action == WARN]
        if warnings:
            edits.append(warning_edit(text, result.start, warnings))
        return splice.edited(text, edits).encode() if edits else frame

    def _capability_edits(self, text: str, result: int, *, announced: bool) -> list[splice.Edit]:
        """What it takes to leave the approved capabilities, and to name our own gates if the policy wants that."""
        offered = self._verdicts.get("capabilities")
        span = splice.member(text, result, "capabilities")
        if span is None:
            return []
        if offered is not None and not offered.passes:
            capabilities = self._approved_capabilities()
            if announced:
                capabilities["extensions"] = {**extensions_of(capabilities), INTERCEPTORS: _interceptor_capability()}
            return [(span.start, span.end, dumps(capabilities, separators=(",", ":")))]
        if not announced or text[span.start] != "{":
            return []
        gates = dumps(_interceptor_capability(), separators=(",", ":"))
        extensions = splice.member(text, span.start, "extensions")
        if extensions is None:
            return [splice.with_member(text, span.start, "extensions", f'{{"{INTERCEPTORS}":{gates}}}')]
        if text[extensions.start] != "{":
            return [(extensions.start, extensions.end, f'{{"{INTERCEPTORS}":{gates}}}')]
        return [splice.with_member(text, extensions.start, INTERCEPTORS, gates)]

    def _approved_capabilities(self) -> dict[str, Any]:
        approved = self._guard.approved
        now = (self.facts or {}).get("capabilities")
        return {} if approved is None else approved_capabilities(now, approved.surface)


def _interceptor_capability() -> dict[str, Any]:
    """What SEP-2624 wants to be said of a host of interceptors."""
    from pinwarden.gateway.interceptors import EVENTS

    return {"supportedEvents": list(EVENTS)}


def stateless_meta(params: Any) -> dict[str, Any] | None:
    """What a request of the stateless era says about its client; None for one of another era."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or VERSION_META not in meta:
        return None
    return {name: meta[name] for name in META_KEYS if name in meta}
