"""JavaScript as the judge of what JavaScript does."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.support.needs import needs

needs_node = needs("node", install="apt-get install nodejs")


def run_node(*arguments: str, question: Any) -> Any:
    """What a script answers on stdout, as JSON, to a question on stdin."""
    done = subprocess.run(
        ["node", *arguments], input=json.dumps(question).encode(), capture_output=True, check=True, timeout=240
    )
    return json.loads(done.stdout)
