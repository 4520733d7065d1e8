"""Ask the witnesses of a registry for cosignatures. Publishing waits for them, but only for a bounded time.

A thread submits each new head to all witnesses at once. A head is settled when every witness has answered or failed, so
a witness that is down delays publishing once and is then asked again only after a pause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import Condition, Event, Thread
from time import monotonic

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record
from pinwarden.core.signed_note import Checkpoint, Note, WitnessKey, verify_cosignatures
from pinwarden.core.tlog import TileNodes, prove_consistency
from pinwarden.registry.registry import Registry
from pinwarden.registry.store import pointer_log
from pinwarden.registry.witness import build_request
from pinwarden.system.net.connections import ServiceEndpoint
from pinwarden.system.net.fetch import Fetcher, FetchLimits, FetchRequest, FetchRules, UploadBody

_POLL_SECONDS = 2.0  # for heads of other replicas and of the operator's commands
_PAUSE_SECONDS = 30.0
_MAX_RESPONSE = 64 * 1024


class WitnessEndpoint(Record):
    """A witness, and the URL below which it answers ``add-checkpoint``."""

    key: WitnessKey
    url: str

    @classmethod
    def parse(cls, text: str) -> WitnessEndpoint | None:
        """Parse ``VKEY@URL``; None if there is no URL."""
        vkey, _, url = text.partition("@http")
        return cls(key=WitnessKey.parse(vkey), url=f"http{url.rstrip('/')}/") if url else None


class WitnessClient:
    """Submits the heads of a registry's log to its witnesses."""

    def __init__(self, registry: Registry, endpoints: Sequence[WitnessEndpoint], warn: Callable[[str], None]) -> None:
        limits = FetchLimits(attempts=1, total_seconds=registry.witness_seconds)
        self._fetcher = Fetcher(FetchRules(limits=limits), os.environ)
        self._registry, self._warn = registry, warn
        self._states = [_WitnessState(endpoint) for endpoint in endpoints]
        self._changed = Condition()
        self._wanted = self._settled = 0
        self._note: Note | None = None
        self._stopping = False
        self._thread = Thread(target=self._run, daemon=True, name="witnesses")
        self._thread.start()

    def close(self) -> None:
        """Stop submitting."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(self._registry.witness_seconds + 1)
        self._fetcher.close()

    def settle(self) -> Note | None:
        """Wait until the current head is settled, at most for the configured time.

        Returns a checkpoint with its cosignatures that is at least as new as the head was; None after the timeout.
        """
        with self._registry.database.transaction() as transaction:
            head = pointer_log.load_head(transaction)
        size = head.size if head else 0
        with self._changed:
            self._wanted = max(self._wanted, size)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._settled >= size or self._stopping, self._registry.witness_seconds)
            return self._note if self._settled >= size else None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._wanted > self._settled, _POLL_SECONDS)
                if self._stopping:
                    return
            try:
                self._submit_head()
            except PinwardenError as err:
                self._warn(f"the head of the log was not submitted to the witnesses: {err.message} ({err.code})")
                with self._changed:  # the next attempt is after a pause, or when the next head is wanted
                    self._changed.wait_for(lambda: self._stopping, _POLL_SECONDS)

    def _submit_head(self) -> None:
        """Submit the head to all witnesses that have not cosigned it, and settle it."""
        with self._registry.database.transaction() as transaction:
            head = pointer_log.load_head(transaction)
            if head is None:
                return
            nodes = TileNodes(head.size, lambda *tile: pointer_log.read_tile(transaction, head.size, *tile) or b"")
            due = [state for state in self._states if state.is_due(head.size)]
            requests = [(state, state.build_request(head.size, Note.parse(head.note), nodes)) for state in due]
        done = [(Event(), state, body) for state, body in requests]
        for event, state, body in done:
            Thread(target=self._submit, args=(state, head, body, event), daemon=True).start()
        deadline = monotonic() + self._registry.witness_seconds
        for event, state, _ in done:
            if not event.wait(max(0.0, deadline - monotonic())):
                state.fail()
        with self._registry.database.transaction() as transaction:
            lines = "".join(pointer_log.list_cosignatures(transaction, head.size))
        with self._changed:
            if head.size >= self._settled:
                self._settled, self._note = head.size, Note.parse(head.note + lines.encode())
            self._changed.notify_all()

    def _submit(self, state: _WitnessState, head: pointer_log.LogHead, body: bytes, event: Event) -> None:
        note = Note.parse(head.note)
        try:
            line = self._ask(state, note, body)
            with self._registry.database.transaction(exclusive=pointer_log.WRITE_LOCK) as transaction:
                pointer_log.save_cosignature(transaction, head.size, state.endpoint.key.name, line)
            state.succeed(head.size)
        except PinwardenError as err:
            if state.fail():
                self._warn(f"the witness {state.endpoint.key.name} did not cosign: {err.message} ({err.code})")
        finally:
            event.set()

    def _ask(self, state: _WitnessState, note: Note, body: bytes) -> str:
        """Return the witness's signature line, verified. Repeats the request once if the witness has another size."""
        status, text = self._send(state, body)
        if status == 409 and text.strip().isdecimal() and len(text) < 22:
            seen, size = int(text), Checkpoint.parse(note.text).size
            if seen > size:
                raise PinwardenError("REGISTRY_LOG_BEHIND", f"it has seen {seen} entries, and this log has {size}")
            status, text = self._send(state, self._build_proof(seen, note))
        if status != 200:
            raise PinwardenError("LOG_WITNESS_MISSING", f"it answered with status {status}")
        for line in text.splitlines():
            signed = Note.parse(bytes(note) + f"{line}\n".encode())
            if verify_cosignatures(signed, [state.endpoint.key]):
                return f"{line}\n"
        raise PinwardenError("LOG_WITNESS_MISSING", "its answer has no cosignature by its key")

    def _build_proof(self, old_size: int, note: Note) -> bytes:
        size = Checkpoint.parse(note.text).size
        with self._registry.database.transaction() as transaction:
            nodes = TileNodes(size, lambda *tile: pointer_log.read_tile(transaction, size, *tile) or b"")
            return build_request(old_size, prove_consistency(old_size, size, nodes.read), note)

    def _send(self, state: _WitnessState, body: bytes) -> tuple[int, str]:
        url = f"{state.endpoint.url}add-checkpoint"
        endpoint = ServiceEndpoint(
            url=state.endpoint.url, configured_by="argument", source="the witness's address", authorization=None
        )
        upload = UploadBody(method="POST", body=body, media_type="text/plain; charset=utf-8")
        response = self._fetcher.send(FetchRequest(endpoint=endpoint, url=url, upload=upload))
        return response.status, response.body[:_MAX_RESPONSE].decode("utf-8", "replace")


class _WitnessState:
    """What this process knows of one witness."""

    def __init__(self, endpoint: WitnessEndpoint) -> None:
        self.endpoint = endpoint
        self._cosigned = 0
        self._paused_until = float("-inf")

    def is_due(self, size: int) -> bool:
        """Whether the witness must be asked: it has not cosigned this head, and is not paused after a failure."""
        return self._cosigned < max(size, 1) and monotonic() >= self._paused_until

    def build_request(self, size: int, note: Note, nodes: TileNodes) -> bytes:
        """Return the request to cosign, with a proof from the last head that this witness cosigned."""
        old = min(self._cosigned, size)
        return build_request(old, prove_consistency(old, size, nodes.read), note)

    def succeed(self, size: int) -> None:
        """Record that the witness cosigned a head."""
        self._cosigned, self._paused_until = size, float("-inf")

    def fail(self) -> bool:
        """Pause the witness. Returns whether it was not paused before."""
        was_paused = monotonic() < self._paused_until
        self._paused_until = monotonic() + _PAUSE_SECONDS
        return not was_paused
