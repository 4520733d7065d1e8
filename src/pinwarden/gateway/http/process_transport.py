"""The transport to a server process: one line is one message, in both directions."""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter, deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, Protocol

from pinwarden.gateway.gated_server import ServerCommand, start_server
from pinwarden.gateway.http.frames import Frame, RequestId, encode
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.process_pipes import LineReader, PipeEnds
from pinwarden.gateway.http.upstream_transport import SERVER_ENDED, ProcessOwner
from pinwarden.surface.protocol import CANCELLED
from pinwarden.system.processes import OPEN_FILE_LIMIT, ProcessTree

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall


_UNREAD = "the server does not read what it is sent"
_INPUT_CLOSED = "the server closed its input"


class ProcessSupervisor:
    """Starts the processes of one server, with a growing pause after each that ended early."""

    def __init__(
        self, name: str, command: Callable[[], ServerCommand], limits: HttpLimits, slots: ProcessSlots | None = None
    ) -> None:
        self.name = name
        self.slots = slots or ProcessSlots(limits.max_children)
        self._command = command
        self.limits = limits
        self.running: set[ProcessTransport] = set()
        self.starts = 0
        self.early_ends = 0
        self.retry_at = 0.0

    def open(self, owner: ProcessOwner, say: Callable[[str], None]) -> ProcessTransport:
        """Create a process, which starts after the pause and when a slot is free."""
        link = ProcessTransport(self, owner, say)
        self.running.add(link)
        link.start_when_due()
        return link

    def command(self) -> ServerCommand:
        """The command to start."""
        self.starts += 1
        return self._command()

    def ended(self, link: ProcessTransport, lived: float, now: float, *, wanted: bool) -> None:
        """A process ended."""
        self.running.discard(link)
        if wanted or lived >= self.limits.stable_seconds:
            self.early_ends = 0
            return
        self.early_ends += 1
        longest = self.limits.longest_backoff_seconds
        self.retry_at = now + min(longest, self.limits.first_backoff_seconds * 2 ** min(self.early_ends - 1, 20))


class ProcessTransport(asyncio.SubprocessProtocol):
    """One process, for one conversation or for all that share it."""

    shared = False
    private = True

    def __init__(self, supervisor: ProcessSupervisor, owner: ProcessOwner, say: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._limits = supervisor.limits
        self._owner = owner
        self._budget = owner.budget
        self.say = say
        self._on_writable: Callable[[], None] = _nothing
        self._write_paused = False
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._tree: ProcessTree | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._begun = 0.0
        self._closed = False
        self.evicted = False
        self._input_closed = False
        self._losing: asyncio.TimerHandle | None = None
        self._pausing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether the process ended, or is being ended."""
        return self._closed

    @property
    def pid(self) -> int | None:
        """The process id, once started."""
        return None if self._process is None else self._process.pid

    # For the process slots

    @property
    def client(self) -> str:
        """The name of the client."""
        return self._owner.client

    @property
    def idle(self) -> bool:
        """Whether no request is open in it."""
        return self._owner.idle

    @property
    def used(self) -> float:
        """When its client last sent something."""
        return self._owner.used

    def evict(self) -> None:
        """End the process, because another client needs its slot."""
        self._evict("the process was ended because another client needed its slot, and this client has most of them")

    def _evict(self, why: str) -> None:
        """End the process without counting it as a failure of the server."""
        self.evicted = True
        if not self._closed:
            self._forget_unread()
            self._end(wanted=True)
            self._owner.server_lost(why)

    def hand_over(self, owner: ProcessOwner, on_writable: Callable[[], None]) -> None:
        """Give the process another owner, which is called when the process accepts more messages."""
        self._owner = owner
        self._on_writable = on_writable

    @property
    def writable(self) -> bool:
        """Whether a message would be written immediately. Writing to a process that closed its input loses it."""
        return self._input_closed or (self._stdin is not None and not self._write_paused)

    def start_when_due(self) -> None:
        """Start the process after the pause for early ends."""
        self._task = self._loop.create_task(self._start())

    def send(self, frame: Frame, parameters: bytes) -> None:
        """Write one message."""
        del parameters
        self.write(frame.data)

    def call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Write one message."""
        del call, message, name
        self.write(body)

    def write(self, data: bytes) -> None:
        """Write one message as a line. JSON has raw line ends only between tokens, so they become spaces."""
        if b"\n" in data or b"\r" in data:
            data = data.replace(b"\r", b" ").replace(b"\n", b" ")
        stdin = self._stdin
        if stdin is None or stdin.is_closing():
            self._keep(data + b"\n")
        elif not (pending_bytes := stdin.get_write_buffer_size()):
            stdin.write(data + b"\n")
        elif pending_bytes > self._limits.max_unsent_bytes:
            self._lose(_UNREAD)
        else:
            stdin.write(data + b"\n")
            self._budget.make()

    def _keep(self, data: bytes) -> None:
        """Queue a line for a process that is starting. A process that closed its input is replaced if it does not end
        by itself."""
        if self._closed:
            return
        if self._input_closed:
            self._losing = self._losing or self._loop.call_later(self._limits.grace_seconds, self._lose, _INPUT_CLOSED)
            return
        self._unsent_bytes += len(data)
        if self._unsent_bytes > self._limits.max_unsent_bytes:
            self._lose(_UNREAD)
        else:
            self._unsent.append(data)
            self._budget.enter(self)
            self._budget.make()

    # Messages that the server has not read

    @property
    def pending_bytes(self) -> int:
        """Bytes that the server has not read."""
        return self._unsent_bytes + (0 if self._stdin is None else self._stdin.get_write_buffer_size())

    def overflow(self) -> None:
        """The shared budget is exceeded, and most bytes wait for this server."""
        self._forget_unread()
        self._lose(f"{_UNREAD}, and more waits for servers than is kept")

    def write_paused(self) -> None:
        """The pipe is full."""
        self._write_paused = True
        self._budget.enter(self)
        self._budget.make()

    def write_resumed(self) -> None:
        """The server caught up."""
        self._budget.leave(self)
        self._write_paused = False
        self._on_writable()

    def cancel(self, request_id: RequestId) -> None:
        """Send ``notifications/cancelled``."""
        note = {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": request_id[1]}}
        self.send(Frame(data=encode(note), message=note), b"")

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Nothing to drop."""

    def hangs(self, since: float) -> bool:
        """The process ends with its conversation."""
        del since
        return False

    def close(self) -> None:
        """End the process and its children: close its input first, and kill it after the grace time."""
        self._end(wanted=True)

    # Callbacks of the pipes

    def line(self, data: bytes) -> None:
        """A line of the server. Lines that cannot be JSON messages are ignored: some servers print logs."""
        if not self._closed and data[:1] in (b"{", b"["):
            self._owner.from_server(data)

    def pipe_closed(self) -> None:
        """The server closed its output."""
        self._lose(SERVER_ENDED)

    def input_closed(self) -> None:
        """The server closed its input. Its output is still read until it ends."""
        self._budget.leave(self)
        self._stdin = None
        self._input_closed = True
        self._on_writable()

    def too_long(self, why: str) -> None:
        """A line exceeds the limit."""
        self._lose(why)

    def stderr_line(self, data: bytes) -> None:
        """A line on standard error goes to the gateway's log."""
        self.say(data[: self._limits.kept_stderr_bytes].decode("utf-8", "backslashreplace"))

    async def _start(self) -> None:
        pause = self._supervisor.retry_at - self._loop.time()
        if pause > 0:
            self._pausing = True
            await asyncio.sleep(pause)
            self._pausing = False
        if self._closed:
            return
        if not await self._supervisor.slots.take(self, self._limits.slot_seconds):
            self._evict(self._supervisor.slots.full)
            return
        try:
            # Building the command may mean hashing files.
            command = await self._loop.run_in_executor(None, self._supervisor.command)
            process, tree, ends = await self._loop.run_in_executor(None, _started, command)
        except Exception as err:  # noqa: BLE001  whatever it is, the server is not there, and that is what is told
            self._supervisor.slots.give_back(self)
            self._begun = self._loop.time()
            self._lose(f"the server could not be started: {err}")
            return
        self._process, self._tree = process, tree
        self._begun = self._loop.time()
        if self.closed:  # meanwhile
            ends.close()
            self._finish_process()
            return
        try:
            await self._connect(ends)
        except (OSError, ValueError) as err:
            ends.close()
            self._lose(f"the server could not be started: {err}")
            return
        self._connected()

    def _connected(self) -> None:
        if self._closed:  # closed meanwhile, before these pipes were connected
            self._close_transports()
            return
        self._budget.leave(self)
        self._unsent_bytes = 0
        while self._unsent and self._stdin is not None:
            self._stdin.write(self._unsent.popleft())
        self._on_writable()

    async def _connect(self, ends: PipeEnds) -> None:
        limits = self._limits
        self._transports.append(
            await ends.stdout.read_with(
                lambda: LineReader(
                    self.line, self.pipe_closed, self.too_long, limits.max_answer_bytes, limits, self._budget
                )
            )
        )
        self._transports.append(
            await ends.stderr.read_with(
                lambda: LineReader(self.stderr_line, _nothing, None, limits.kept_stderr_bytes, limits)
            )
        )
        stdin = await ends.stdin.write_with(lambda: _Input(self))
        self._transports.append(stdin)
        self._stdin = stdin

    def lose(self, why: str) -> None:
        """End the process because it failed, and inform the owner."""
        self._lose(why)

    def _lose(self, why: str) -> None:
        if not self._closed:
            self._forget_unread()
            self._end(wanted=False)
            self._owner.server_lost(why)

    def _forget_unread(self) -> None:
        """Drop messages that the server will not read."""
        self._budget.leave(self)
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._stdin is not None and self._stdin.get_write_buffer_size():
            self._stdin.abort()
            self._stdin = None

    def _end(self, *, wanted: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._stdin is None:
            self._forget_unread()
        now = self._loop.time()
        self._supervisor.ended(self, now - self._begun, now, wanted=wanted)
        if self._process is not None:
            self._finish_process()
        elif self._task is not None and wanted and self._pausing:
            self._task.cancel()

    def _finish_process(self) -> None:
        if self._stdin is not None:
            self._stdin.close()
        tree = self._tree
        if tree is not None:
            ending = self._loop.run_in_executor(None, tree.end, self._limits.grace_seconds)
            ending.add_done_callback(self._close_pipes)

    def _close_pipes(self, _: Any) -> None:
        self._supervisor.slots.give_back(self)
        self._forget_unread()
        self._close_transports()

    def _close_transports(self) -> None:
        for transport in self._transports:
            transport.close()


class _Input(asyncio.BaseProtocol):
    """Flow control of the server's standard input."""

    def __init__(self, link: ProcessTransport) -> None:
        self._link = link

    def pause_writing(self) -> None:
        self._link.write_paused()

    def resume_writing(self) -> None:
        self._link.write_resumed()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._link.input_closed()


def _nothing() -> None:
    return None


def _started(command: ServerCommand) -> tuple[subprocess.Popen[bytes], ProcessTree, PipeEnds]:
    process = start_server(command, subprocess.PIPE)
    tree = ProcessTree(process)
    try:
        OPEN_FILE_LIMIT.restore_for(process.pid)
        return process, tree, PipeEnds.of_process(process)
    except BaseException:
        tree.end(0, immediately=True)
        raise


class SlotHolder(Protocol):
    """A process that occupies a slot."""

    @property
    def client(self) -> str:
        """The name of the client."""

    @property
    def idle(self) -> bool:
        """Whether no request is open in it."""

    @property
    def used(self) -> float:
        """When its client last sent something."""

    def evict(self) -> None:
        """End the process, because another client needs its slot."""


class ProcessSlots:
    """Limits how many processes run, of all servers together, and shares them fairly between clients."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.full = (
            f"the gateway runs {most} server processes already, which is its limit; end a session, try again later, or "
            "let the gateway's operator raise --max-processes"
        )
        """The error for a client that gets no slot."""
        self._holders: set[SlotHolder] = set()
        """Processes that are not being evicted."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.taken = 0
        """Occupied slots, including processes that are ending."""

    async def take(self, holder: SlotHolder, seconds: float) -> bool:
        """Occupy a slot. If none is free, evict a process of the client with most slots; False if that fails."""
        if self.taken < self._most:
            self.taken += 1
        else:
            chosen = self._victim(holder.client)
            if chosen is None or not await self._slot_of(chosen, seconds):
                return False
        self._holders.add(holder)
        return True

    def give_back(self, holder: SlotHolder) -> None:
        """Release the slot of a process that ended."""
        self._holders.discard(holder)
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)  # it takes over the slot
                return
        self.taken -= 1

    def _victim(self, client: str) -> SlotHolder | None:
        """The process to evict, of the client with most slots: an idle one, or any if the client has more than half."""
        of = Counter(each.client for each in self._holders)
        most = max(of.values(), default=0)
        if most < of[client] + 2:
            return None
        own = [each for each in self._holders if of[each.client] == most]
        idle = [each for each in own if each.idle]
        if not idle and most * 2 <= self._most:
            return None
        return min(idle or own, key=lambda each: each.used)

    async def _slot_of(self, chosen: SlotHolder, seconds: float) -> bool:
        pending_bytes = asyncio.get_running_loop().create_future()
        self._waiting.append(pending_bytes)
        self._holders.discard(chosen)
        chosen.evict()
        try:
            await asyncio.wait((pending_bytes,), timeout=seconds)
        finally:
            given = pending_bytes.done() or not pending_bytes.cancel()
        return given
