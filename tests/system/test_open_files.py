"""Connections leave files to the rest of a process, and other programs get the bound that they would have had."""

from __future__ import annotations

import subprocess
import sys

ASK = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
SCENE = """
import subprocess, sys, resource
from pinwarden.system.processes import OPEN_FILE_LIMIT, limit_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
print(limit_connections(2048))
OPEN_FILE_LIMIT.raise_limit()
print(limit_connections(2048), limit_connections(100))
child = subprocess.Popen([sys.executable, "-c", "input();" + sys.argv[1]], stdin=subprocess.PIPE)
OPEN_FILE_LIMIT.restore_for(child.pid)
sys.stdout.flush()
child.communicate(b"\\n")
"""


def test_a_low_limit_is_raised_for_this_process_but_not_for_its_children() -> None:
    done = subprocess.run([sys.executable, "-c", SCENE, ASK], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.split() == ["128", "512", "100", "256"]
