"""Every descriptor of a pipe or socket has one owner and is closed once, even after failures."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import uvloop

from pinwarden.gateway.http.http_limits import HttpLimits
from pinwarden.gateway.http.process_pipes import PipeEnd, PipeEnds
from pinwarden.gateway.http.upstream_pool import UpstreamPool
from pinwarden.system.net.connections import NetworkRules
from pinwarden.system.target import HttpAddress
from tests.gateway.descriptors import StrictLoop, open_descriptors
from tests.gateway.http_gateway import RawClient, UpstreamServer, gateway, guard
from tests.servers import witness
from tests.support.waiting import poll

NewLoop = Callable[[], asyncio.AbstractEventLoop]
BOTH = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
CAT = ("/bin/cat",)


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        CAT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, start_new_session=True
    )


@pytest.fixture(scope="module", autouse=True)
def _global_descriptors() -> None:
    """Open the descriptors that libuv keeps for all loops of a process."""
    uvloop.run(asyncio.sleep(0))


@pytest.fixture(scope="module", autouse=True)
def _small_collections() -> Iterator[None]:
    """Let the many collections of this module look only at its own objects, not at those of all earlier tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@contextmanager
def same_descriptors_as_before() -> Iterator[None]:
    gc.collect()
    before = open_descriptors()
    yield
    gc.collect()
    assert open_descriptors() == before


@contextmanager
def reused_descriptor(descriptor: int) -> Iterator[None]:
    """Open another file under a free descriptor number; it must still be open at the end."""
    lower = []
    while (taken := os.open(os.devnull, os.O_RDONLY)) < descriptor:
        lower.append(taken)
    assert taken == descriptor, "the number was free"
    try:
        yield
        assert Path(f"/proc/self/fd/{descriptor}").readlink() == Path(os.devnull)
    finally:
        for opened in (*lower, taken):
            with suppress(OSError):
                os.close(opened)


@BOTH
def test_a_pipe_closed_by_the_event_loop_is_not_closed_twice(new_loop: NewLoop) -> None:
    async def talk() -> None:
        process = started()
        ends = PipeEnds.from_process(process)
        numbers = [end.fileno() for end in (ends.stdin, ends.stdout, ends.stderr)]
        transports = [
            await ends.stdin.connect_writer(asyncio.BaseProtocol),
            await ends.stdout.connect_reader(asyncio.Protocol),
            await ends.stderr.connect_reader(asyncio.Protocol),
        ]
        for transport in transports:
            transport.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with reused_descriptor(max(numbers)):
            ends.close()
            process.wait(60)
            del ends, process, transports
            gc.collect()

    with same_descriptors_as_before(), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())


@BOTH
def test_a_cancelled_start_closes_every_pipe_once(new_loop: NewLoop) -> None:
    async def talk() -> None:
        process = started()
        ends = PipeEnds.from_process(process)
        task = asyncio.get_running_loop().create_task(ends.stdout.connect_reader(asyncio.Protocol))
        await asyncio.sleep(0)
        descriptor = ends.stdout.fileno()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        with reused_descriptor(descriptor):
            ends.close()
        process.kill()
        process.wait(60)

    with same_descriptors_as_before(), asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(talk())


def test_a_descriptor_that_the_event_loop_refuses_is_closed(tmp_path: Path) -> None:
    async def refused() -> None:
        end = PipeEnd(os.open(tmp_path / "file", os.O_RDONLY | os.O_CREAT))
        with pytest.raises(ValueError, match="only for pipes"):
            await end.connect_writer(asyncio.BaseProtocol)

    with same_descriptors_as_before():
        asyncio.run(refused())


def test_no_pipe_leaks_when_the_open_file_limit_is_reached() -> None:
    with same_descriptors_as_before():
        process = started()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(descriptor) for descriptor in open_descriptors())
        filled = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
            with suppress(OSError):
                while True:
                    filled.append(os.open(os.devnull, os.O_RDONLY))
            with pytest.raises(OSError, match="Too many open files"):
                PipeEnds.from_process(process)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for descriptor in filled:
                os.close(descriptor)
        assert process.wait(60) == 0, "its input ended"


def test_no_pipe_uses_the_descriptor_of_a_standard_stream() -> None:
    code = (
        "import os, subprocess; from pinwarden.gateway.http.process_pipes import PipeEnds\n"
        "os.close(0); os.close(1)\n"
        "pipes = dict.fromkeys(('stdin', 'stdout', 'stderr'), subprocess.PIPE)\n"
        "ends = PipeEnds.from_process(subprocess.Popen(['/bin/cat'], bufsize=0, **pipes))\n"
        "os._exit(min(end.fileno() for end in (ends.stdin, ends.stdout, ends.stderr)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode >= 3


def test_a_gateway_on_uvloop_closes_every_pipe_once(tmp_path: Path) -> None:
    loop = StrictLoop()
    command = [sys.executable, "-I", "-S", str(Path(witness.__file__)), str(tmp_path / "report")]
    with gateway({"witness": UpstreamServer(guard("witness"), command=command)}, new_loop=lambda: loop) as at:
        with RawClient(at, "witness") as raw:
            raw.initialize()
            raw.send(b"", method="DELETE")
        poll(lambda: loop.closes == 3)
    assert loop.checked > 0
    assert loop.closed_twice == []


@BOTH
def test_an_abandoned_connection_to_a_remote_closes_its_socket_once(new_loop: NewLoop) -> None:
    """A server that accepts connections and never starts TLS."""

    async def try_it(port: int) -> None:
        pool = UpstreamPool(
            HttpAddress.parse(f"https://127.0.0.1:{port}/mcp"), NetworkRules(allow_private=True), HttpLimits()
        )
        task = asyncio.get_running_loop().create_task(pool._create_connection())
        taken, _ = await asyncio.get_running_loop().run_in_executor(None, listener.accept)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        taken.close()
        pool.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(try_it(listener.getsockname()[1]))

        run()  # warm up: some things are loaded once
        with same_descriptors_as_before():
            run()
