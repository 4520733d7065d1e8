"""The transport to a server process, which reads and writes one message per line."""

from __future__ import annotations

import asyncio
import subprocess
from collections import deque
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, cast

from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.memory_budget import MemoryBudget
from pinwarden.gateway.http.process_pipes import PipeEnds
from pinwarden.gateway.http.upstream_transport import SERVER_ENDED, ProcessOwner
from pinwarden.gateway.session.messages import ParsedMessage, RequestId, encode
from pinwarden.project.server_start import ServerCommand, start_server
from pinwarden.surface.protocol import CANCELLED
from pinwarden.system.processes import OPEN_FILE_LIMIT, ProcessTree

if TYPE_CHECKING:
    from pinwarden.gateway.http.open_requests import ToolCall
    from pinwarden.gateway.http.process_supervisor import ProcessSupervisor


_UNREAD = "the server does not read its input"
_INPUT_CLOSED = "the server closed its input"


class ProcessTransport(asyncio.SubprocessProtocol):
    """One server process, for one conversation or for all conversations that share it."""

    shared = False
    has_single_client = True

    def __init__(self, supervisor: ProcessSupervisor, owner: ProcessOwner, write_log: Callable[[str], None]) -> None:
        self._supervisor = supervisor
        self._limits = supervisor.limits
        self._owner = owner
        self._budget = owner.budget
        self.write_log = write_log
        self._on_writable: Callable[[], None] = _do_nothing
        self._write_paused = False
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._tree: ProcessTree | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._started_at = 0.0
        self._closed = False
        self.evicted = False
        self._input_closed = False
        self._loss_timer: asyncio.TimerHandle | None = None
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
    def is_idle(self) -> bool:
        """Whether the process has no open request."""
        return self._owner.is_idle

    @property
    def last_used(self) -> float:
        """When the client of the process last sent a message."""
        return self._owner.last_used

    def evict(self) -> None:
        """End the process, because another client needs its slot."""
        self._evict("the process was ended because another client needed its slot, and this client has the most")

    def _evict(self, reason: str) -> None:
        """End the process without counting it as a failure of the server."""
        self.evicted = True
        if not self._closed:
            self._drop_unread()
            self._end(by_gateway=True)
            self._owner.on_server_lost(reason)

    def hand_over(self, owner: ProcessOwner, on_writable: Callable[[], None]) -> None:
        """Change the owner of the process. ``on_writable`` is called when the process accepts further messages."""
        self._owner = owner
        self._on_writable = on_writable

    @property
    def writable(self) -> bool:
        """Whether the process accepts a message now. Also true if it closed its input: messages are then dropped."""
        return self._input_closed or (self._stdin is not None and not self._write_paused)

    def start_when_due(self) -> None:
        """Start the process after the backoff."""
        self._task = self._loop.create_task(self._start())

    def send(self, message: ParsedMessage, param_headers: bytes) -> None:
        """Write one message."""
        del param_headers
        self.write(message.data)

    def send_call(self, call: ToolCall, body: bytes, message: Any, name: str) -> None:
        """Write a tool call."""
        del call, message, name
        self.write(body)

    def write(self, data: bytes) -> None:
        """Write one message as a line. Raw line breaks occur only between JSON tokens, so they become spaces."""
        if b"\n" in data or b"\r" in data:
            data = data.replace(b"\r", b" ").replace(b"\n", b" ")
        stdin = self._stdin
        if stdin is None or stdin.is_closing():
            self._queue_line(data + b"\n")
        elif not (pending_bytes := stdin.get_write_buffer_size()):
            stdin.write(data + b"\n")
        elif pending_bytes > self._limits.max_unsent_bytes:
            self._fail(_UNREAD)
        else:
            stdin.write(data + b"\n")
            self._budget.enforce()

    def _queue_line(self, data: bytes) -> None:
        """Queue a line for a process that is starting. If the process closed its input, end it after the grace time."""
        if self._closed:
            return
        if self._input_closed:
            self._loss_timer = self._loss_timer or self._loop.call_later(
                self._limits.grace_seconds, self._fail, _INPUT_CLOSED
            )
            return
        self._unsent_bytes += len(data)
        if self._unsent_bytes > self._limits.max_unsent_bytes:
            self._fail(_UNREAD)
        else:
            self._unsent.append(data)
            self._budget.add(self)
            self._budget.enforce()

    # Messages that the server has not read

    @property
    def pending_bytes(self) -> int:
        """Bytes that the server has not read."""
        return self._unsent_bytes + (0 if self._stdin is None else self._stdin.get_write_buffer_size())

    def on_overflow(self) -> None:
        """End the process, because the shared budget is exceeded and most queued bytes are for this server."""
        self._drop_unread()
        self._fail(f"{_UNREAD}, and the memory budget for queued messages is exceeded")

    def on_write_paused(self) -> None:
        """Count queued bytes against the budget, because the pipe is full."""
        self._write_paused = True
        self._budget.add(self)
        self._budget.enforce()

    def on_write_resumed(self) -> None:
        """Stop counting queued bytes, because the server has read them."""
        self._budget.remove(self)
        self._write_paused = False
        self._on_writable()

    def cancel(self, request_id: RequestId) -> None:
        """Send ``notifications/cancelled``."""
        notification = {"jsonrpc": "2.0", "method": CANCELLED, "params": {"requestId": request_id[1]}}
        self.send(ParsedMessage(data=encode(notification), value=notification), b"")

    def expire(self, before: float, keep: Container[RequestId]) -> None:
        """Do nothing, because this transport has no state per request."""

    def check_hang(self, since: float) -> bool:
        """Return False, so that the conversation ends, which also ends the process."""
        del since
        return False

    def close(self) -> None:
        """Close the input of the process, and kill the process and its children after the grace time."""
        self._end(by_gateway=True)

    # Callbacks of the pipes

    def on_line(self, data: bytes) -> None:
        """Handle a line of the server. Ignores lines that cannot be JSON messages, because some servers print logs."""
        if not self._closed and data[:1] in (b"{", b"["):
            self._owner.on_server_message(data)

    def on_output_closed(self) -> None:
        """Handle that the server closed its output."""
        self._fail(SERVER_ENDED)

    def on_input_closed(self) -> None:
        """Handle that the server closed its input. The gateway still reads the server's output."""
        self._budget.remove(self)
        self._stdin = None
        self._input_closed = True
        self._on_writable()

    def on_line_too_long(self, reason: str) -> None:
        """Handle a line above the size limit."""
        self._fail(reason)

    def on_stderr_line(self, data: bytes) -> None:
        """Write a line of the server's stderr to the gateway's log."""
        self.write_log(data[: self._limits.max_stderr_line_bytes].decode("utf-8", "backslashreplace"))

    async def _start(self) -> None:
        pause = self._supervisor.retry_at - self._loop.time()
        if pause > self._limits.max_awaited_backoff_seconds:
            self._evict(self._supervisor.describe_backoff(pause))
            return
        if pause > 0:
            self._pausing = True
            await asyncio.sleep(pause)
            self._pausing = False
        if self._closed:
            return
        if not await self._supervisor.slots.take(self, self._limits.eviction_seconds):
            self._evict(self._supervisor.slots.full_message)
            return
        try:
            # Building the command may hash files.
            command = await self._loop.run_in_executor(None, self._supervisor.build_command)
            process, tree, ends = await self._loop.run_in_executor(None, _start_process, command)
        except Exception as err:  # noqa: BLE001  the client gets any error as the reason
            self._supervisor.slots.release(self)
            self._started_at = self._loop.time()
            self._fail(f"the server could not be started: {err}")
            return
        self._process, self._tree = process, tree
        self._started_at = self._loop.time()
        if self.closed:  # closed while the process was starting
            ends.close()
            self._finish_process()
            return
        try:
            await self._connect(ends)
        except (OSError, ValueError) as err:
            ends.close()
            self._fail(f"the server could not be started: {err}")
            return
        self._flush_unsent()

    def _flush_unsent(self) -> None:
        if self._closed:  # closed while the pipes were being connected
            self._close_transports()
            return
        self._budget.remove(self)
        self._unsent_bytes = 0
        while self._unsent and self._stdin is not None:
            self._stdin.write(self._unsent.popleft())
        self._on_writable()

    async def _connect(self, ends: PipeEnds) -> None:
        limits = self._limits
        self._transports.append(
            await ends.stdout.connect_reader(
                lambda: LineReader(
                    self.on_line,
                    self.on_output_closed,
                    self.on_line_too_long,
                    limits.max_server_message_bytes,
                    limits,
                    self._budget,
                )
            )
        )
        self._transports.append(
            await ends.stderr.connect_reader(
                lambda: LineReader(self.on_stderr_line, _do_nothing, None, limits.max_stderr_line_bytes, limits)
            )
        )
        stdin = await ends.stdin.connect_writer(lambda: _InputFlowControl(self))
        self._transports.append(stdin)
        self._stdin = stdin

    def fail(self, reason: str) -> None:
        """End the process because it failed, and inform the owner."""
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if not self._closed:
            self._drop_unread()
            self._end(by_gateway=False)
            self._owner.on_server_lost(reason)

    def _drop_unread(self) -> None:
        """Drop messages that the server will not read."""
        self._budget.remove(self)
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._stdin is not None and self._stdin.get_write_buffer_size():
            self._stdin.abort()
            self._stdin = None

    def _end(self, *, by_gateway: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._stdin is None:
            self._drop_unread()
        if self._started_at:
            now = self._loop.time()
            self._supervisor.on_ended(self, now - self._started_at, now, by_gateway=by_gateway)
        else:
            self._supervisor.running.discard(self)
        if self._process is not None:
            self._finish_process()
        elif self._task is not None and by_gateway and self._pausing:
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
        self._drop_unread()
        self._close_transports()

    def _close_transports(self) -> None:
        for transport in self._transports:
            transport.close()


class _InputFlowControl(asyncio.BaseProtocol):
    """Flow control of the server's standard input."""

    def __init__(self, transport: ProcessTransport) -> None:
        self._transport = transport

    def pause_writing(self) -> None:
        self._transport.on_write_paused()

    def resume_writing(self) -> None:
        self._transport.on_write_resumed()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._transport.on_input_closed()


def _do_nothing() -> None:
    return None


def _start_process(command: ServerCommand) -> tuple[subprocess.Popen[bytes], ProcessTree, PipeEnds]:
    process = start_server(command, subprocess.PIPE)
    tree = ProcessTree(process)
    try:
        OPEN_FILE_LIMIT.restore_for(process.pid)
        return process, tree, PipeEnds.from_process(process)
    except BaseException:
        tree.end(0, immediately=True)
        raise


_BUDGET_STEP = 1 << 16  # a partial line is counted again after this many bytes
TOO_LONG = "the server sent a message above the size limit"
TOO_MUCH = "the memory budget for incomplete messages is exceeded, and this server's message is the largest"


class LineReader(asyncio.Protocol):
    """Splits the output of a process into lines. If lines arrive too fast, it stops reading for a moment."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        on_line: Callable[[bytes], None],
        on_closed: Callable[[], None],
        on_too_long: Callable[[str], None] | None,
        max_bytes: int,
        limits: HttpLimits,
        budget: MemoryBudget | None = None,
    ) -> None:
        """``on_too_long`` is called with the reason if a line exceeds ``max_bytes`` or the shared memory budget.

        If it is None, the bytes beyond the limit are dropped.
        """
        self._on_line = on_line
        self._on_closed = on_closed
        self._on_too_long = on_too_long
        self._max_bytes = max_bytes
        self._limits = limits
        self._budget = budget
        self._transport: asyncio.ReadTransport | None = None
        self._partial = bytearray()
        """The start of an incomplete line, in one buffer. A list of small pieces could need twenty times the memory."""
        self._counted = 0
        self._unread = b""
        """Received bytes. The bytes from `_offset` on are not processed yet."""
        self._offset = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""
        if not self._partial and not self._paused and data[-1:] == b"\n" and data.count(b"\n") == 1:
            line = data.strip()  # the most common case
            if line:
                self._on_line(line)
            return
        if self._paused:
            self._unread, self._offset = self._unread[self._offset :] + data, 0
            return
        self._unread, self._offset = data, 0
        self._process()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Handle that the process ended or closed its output."""
        self._transport = None
        self._drop()
        self._on_closed()

    def _process(self) -> None:
        """Process a limited number of lines, then let other work run."""
        messages, size = self._limits.max_messages_at_once, self._limits.max_bytes_at_once
        while (end := self._unread.find(b"\n", self._offset)) >= 0:
            if messages <= 0 or size <= 0:
                self._pause()
                return
            line = self._unread[self._offset : end]
            self._offset = end + 1
            if self._partial:
                self._partial += line
                line = bytes(self._partial)
                self._clear_partial()
            line = line.strip()
            messages -= 1
            size -= len(line)
            if line:
                self._on_line(line)
        remainder = self._unread[self._offset :]
        self._unread, self._offset = b"", 0
        if remainder:
            self._append_partial(remainder)
        self._resume()

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
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

    def on_overflow(self) -> None:
        """Drop the partial line, because the shared budget is exceeded and this line is the largest message."""
        self._drop()
        if self._on_too_long is not None:
            self._on_too_long(TOO_MUCH)

    def _append_partial(self, remainder: bytes) -> None:
        if len(self._partial) + len(remainder) <= self._max_bytes:
            self._partial += remainder
            if self._budget is not None and len(self._partial) - self._counted >= _BUDGET_STEP:
                self._counted = len(self._partial)
                self._budget.add(self)
                self._budget.enforce()
        elif self._on_too_long is not None:
            self._drop()
            self._on_too_long(TOO_LONG)

    def _clear_partial(self) -> None:
        self._partial = bytearray()
        if self._counted and self._budget is not None:
            self._budget.remove(self)
        self._counted = 0

    def _drop(self) -> None:
        self._clear_partial()
        self._unread, self._offset = b"", 0
