"""A census of a registry of bundles: only bundles that ``pinwarden install`` would accept are observed."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.cli.run import pinwarden_in
from tests.cli.test_help_examples import Reader
from tests.support.needs import needs


@needs("bwrap", install="apt-get install bubblewrap")
def test_bundles_are_observed_as_install_accepts_them(tmp_path: Path) -> None:
    with ExitStack() as stack:
        reader = Reader(tmp_path)
        replica = reader.publish(stack)

        def observe() -> dict[str, Any]:
            options = ("--allow-execute", "--allow-private", "--allow-plain-http", "--database", "census.sqlite")
            variables = {**os.environ, **reader.variables}
            done = pinwarden_in(variables, "census", "run", replica.url, *options, "--format", "json", cwd=reader.root)
            report: dict[str, Any] = json.loads(done.out)
            return report

        refused = observe()
        assert refused["failures"] == [{"code": "POLICY_REFUSED", "reason": "POINTER_SIGNATURE_INVALID", "servers": 1}]
        reader.run("trust", "add", "export/registry.json", "--role", "registry")
        reader.run("trust", "add", "release.pem.pub", "--role", "maintainer", "--role", "verifier")
        observed = observe()
        assert observed["states"] == {"observed": 1}, observed["failures"]
        assert observe()["states"] == {"unchanged": 1}
        reader.run("census", "export", "results.csv", "--database", "census.sqlite")
        row = (reader.root / "results.csv").read_text().splitlines()[1]
        assert row.startswith("acme/notes,unchanged,")
