"""The site is built from ``docs`` without a network and without a warning, and has every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
LOADED = re.compile(r'<(?:script|img|link)[^>]* (?:src|href)="(https?:[^"]*)"')


def test_the_site_has_every_page_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    # Without a network: the proxy does not exist, and nothing may be requested.
    offline = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **offline}, capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    built = {path.relative_to(tmp_path / "site").with_suffix("") for path in (tmp_path / "site").rglob("*.html")}
    names = {page.with_name("index") if page.name == "README" else page for page in pages}
    assert names <= built
    for path in (tmp_path / "site").rglob("*.html"):
        assert LOADED.findall(path.read_text(encoding="utf-8")) == [], path
