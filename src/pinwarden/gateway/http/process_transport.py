"""The transport to a server process: one line is one message, in both directions."""

from __future__ import annotations

import asyncio
import subprocess
from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, cast

from pinwarden.gateway.gated_server import ServerCommand, start_server
from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.process_pipes import PipeEnds
from pinwarden.gateway.http.upstream_transport import SERVER_ENDED, ProcessOwner
from pinwarden.gateway.session.messages import Frame, RequestId, encode
from pinwarden.surface.protocol import CANCELLED
from pinwarden.system.processes import OPEN_FILE_LIMIT, ProcessTree

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall
    from pinwarden.gateway.http.process_supervisor import ProcessSupervisor


_UNREAD = "the server does not read its input"
_INPUT_CLOSED = "the server closed its input"


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
            self._budget.enforce()

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
            self._budget.enforce()

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
        self._budget.enforce()

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
        except Exception as err:  # noqa: BLE001  the client gets any error as the reason
            self._supervisor.slots.release(self)
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
        self._supervisor.slots.release(self)
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


_COUNTED = 1 << 16  # bytes of a partial line between two updates of the budget
TOO_LONG = "the server sent a message above the size limit"
TOO_MUCH = "too many bytes of incomplete messages are in memory, and most are this server's"


class LineReader(asyncio.Protocol):
    """Bytes in, lines out. When lines come faster than they are processed, the writer is blocked by a full pipe."""

    def __init__(  # noqa: PLR0913, PLR0917  whom it tells, and its bounds
        self,
        take: Callable[[bytes], None],
        closed: Callable[[], None],
        too_long: Callable[[str], None] | None,
        most: int,
        limits: HttpLimits,
        budget: MemoryBudget | None = None,
    ) -> None:
        """``too_long`` is called with the reason if a line exceeds ``most`` bytes; without it the line is truncated."""
        self._on_line = take
        self._on_closed = closed
        self._on_too_long = too_long
        self._max_bytes = most
        self._limits = limits
        self._budget = budget
        self._transport: asyncio.ReadTransport | None = None
        self._partial = bytearray()
        """The start of a line, as one buffer: a list of tiny parts takes twenty times their size."""
        self._counted = 0
        self._unread = b""
        """Received bytes that are not processed yet, from `_offset` on."""
        self._offset = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The pipe is connected."""
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if not self._partial and not self._paused and data[-1:] == b"\n" and data.count(b"\n") == 1:
            line = data.strip()  # nearly every message
            if line:
                self._on_line(line)
            return
        if self._paused:
            self._unread, self._offset = self._unread[self._offset :] + data, 0
            return
        self._unread, self._offset = data, 0
        self._process()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The process ended, or closed its output."""
        self._transport = None
        self._drop()
        self._on_closed()

    def _process(self) -> None:
        """Process a limited number of lines, then let other work run."""
        frames, size = self._limits.max_frames_at_once, self._limits.max_bytes_at_once
        while (end := self._unread.find(b"\n", self._offset)) >= 0:
            if frames <= 0 or size <= 0:
                self._pause()
                return
            line = self._unread[self._offset : end]
            self._offset = end + 1
            if self._partial:
                self._partial += line
                line = bytes(self._partial)
                self._forget()
            line = line.strip()
            frames -= 1
            size -= len(line)
            if line:
                self._on_line(line)
        rest = self._unread[self._offset :]
        self._unread, self._offset = b"", 0
        if rest:
            self._keep(rest)
        self._resume()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is None:
            self._drop()
            return
        try:
            self._process()
        except BaseException:
            self._transport.close()  # otherwise the pipe would never be read again
            raise

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    # Partial lines

    @property
    def pending_bytes(self) -> int:
        """Bytes of the partial line."""
        return len(self._partial)

    def overflow(self) -> None:
        """The shared budget is exceeded, and this partial line is the largest."""
        self._drop()
        if self._on_too_long is not None:
            self._on_too_long(TOO_MUCH)

    def _keep(self, rest: bytes) -> None:
        if len(self._partial) + len(rest) <= self._max_bytes:
            self._partial += rest
            if self._budget is not None and len(self._partial) - self._counted >= _COUNTED:
                self._counted = len(self._partial)
                self._budget.enter(self)
                self._budget.enforce()
        elif self._on_too_long is not None:
            self._drop()
            self._on_too_long(TOO_LONG)

    def _forget(self) -> None:
        self._partial = bytearray()
        if self._counted and self._budget is not None:
            self._budget.leave(self)
        self._counted = 0

    def _drop(self) -> None:
        self._forget()
        self._unread, self._offset = b"", 0
