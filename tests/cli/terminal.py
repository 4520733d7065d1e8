"""A shell on a terminal, and somebody who types."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from pathlib import Path

_READY = "ready" + "-to-type"
_END = "end" + "-of-line"


def typed(shell: list[str], setup: str, line: str, folder: Path, seconds: float = 240) -> list[str]:
    """The words of a command line that was typed, TAB keys included, as the command ``pinwarden`` receives them."""
    shown = "pinwarden() { printf '<%s>' \"$@\"; printf '%s-of-line' end; }"
    (folder / ".setup").write_text(f"{setup}\n{shown}\nprintf '%s-to-type' ready\n")
    controller, terminal = pty.openpty()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TERM": "dumb",
        "INPUTRC": "/dev/null",
        "LANG": "C.UTF-8",
    }
    process = subprocess.Popen(
        shell, stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment, start_new_session=True
    )
    os.close(terminal)
    deadline = time.monotonic() + seconds
    try:
        os.write(controller, b". ./.setup\n")
        _until(controller, _READY, deadline)
        os.write(controller, line.encode() + b"\n")
        output = _until(controller, _END, deadline)
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    answer = output[: output.rindex(_END)].rsplit("\n", 1)[-1]
    return answer.strip()[1:-1].split("><")


def _until(controller: int, mark: str, deadline: float) -> str:
    output = ""
    while mark not in output:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([controller], [], [], max(0.0, left))
        if not ready:
            raise AssertionError(f"the shell did not answer in time: {output[-2000:]!a}")
        output += os.read(controller, 65536).decode("utf-8", "replace")
    return output
