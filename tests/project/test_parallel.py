"""The same work for several servers on threads."""

from __future__ import annotations

import subprocess
import sys

_SLOW_CONFIGURATION = """
import sysconfig, time

read_posix = sysconfig._init_posix

def read_slowly(variables):
    time.sleep(0.2)
    read_posix(variables)

sysconfig._init_posix = read_slowly

from pinwarden.project.parallel import run_for_servers

suffixes = []
run_for_servers(
    ["notes", "clock", "docs"],
    lambda index: sysconfig.get_config_var("EXT_SUFFIX"),
    lambda index, suffix: suffixes.append(suffix),
    context=None,
)
print(suffixes.count(None), len(suffixes))
"""


def test_servers_share_a_complete_python_configuration() -> None:
    """The first call of ``sysconfig`` fills a dictionary that other threads already see."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _SLOW_CONFIGURATION], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["0", "3"]
