"""Rulebook v0.1.1, section 6: what is installed and what is not, to the letter and hardened, by the command line."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from pinwarden.cli.main import main
from tests.conformance.test_rulebook_core import rulebook
from tests.conformance.vectors import uncopied
from tests.support.needs import not_ours

PUBLISHED = "rulebook/published/test-vectors/acceptance"


@pytest.mark.parametrize("literal", [False, True], ids=["hardened", "literal"])
@pytest.mark.parametrize("case", rulebook("install"))
def test_an_install_is_decided_as_the_rulebook_says(
    case: dict[str, Any], literal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect = case.get("notes_literal", case["expect"]) if literal else case["expect"]
    request = case.get("request") or {}
    named = [word for name in ("tool", "channel") if name in request for word in (f"--{name}", request[name])]
    code = main([*arguments(case, tmp_path), *named, *(["--literal"] if literal else [])])
    answer = json.loads(capsys.readouterr().out)
    assert answer["result"] == expect["result"], answer
    if expect["result"] == "ACCEPT":
        assert code == 0
        assert set(answer) == {"result", "provenance"}
        assert answer["provenance"] == expect.get("provenance", answer["provenance"])
    else:
        assert code == 1
        assert set(answer) == {"result", "error"}
        assert answer["error"]["code"] == expect["code"]
        assert set(answer["error"]) == {"code", "what", "why", "fix"}


def arguments(case: dict[str, Any], folder: Path) -> list[str]:
    """The documents of a case as files, and the command line that judges them."""
    trust = {name: case[name] for name in ("trusted_registry_keys", "known_keys")}
    files = {name: content(document) for name, document in case["documents"].items()}
    files |= {"policy": json.dumps(case["policy"]).encode(), "trust": json.dumps(trust).encode()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    words = ["bundle", "accept", "--now", case["now_utc"], "--format", "json"]
    words += [word for name in files for word in (f"--{name}", str(folder / name))]
    for number, document in enumerate(case["attestations"]):
        path = folder / f"attestation-{number}"
        path.write_bytes(content(document))
        words += ["--attestation", str(path)]
    return words


def content(document: dict[str, Any]) -> bytes:
    return b64decode(document["b64"]) if "b64" in document else json.dumps(document["json"]).encode()


def test_refusals_say_why_in_the_members_that_the_published_vectors_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = uncopied(PUBLISHED)
    if folder is None:
        not_ours("the published set of vectors")
    checked = 0
    for parameter in rulebook("install"):
        (case,) = parameter.values
        expected = folder / case["id"] / "expected.json"
        if not expected.exists():
            continue
        main(arguments(case, tmp_path))
        answer, wanted = json.loads(capsys.readouterr().out), json.loads(expected.read_text())
        assert answer.get("provenance") == wanted.get("provenance")
        assert answer.get("error", {}).get("why") == wanted.get("error", {}).get("why")
        checked += 1
    assert checked == len(list(folder.glob("*/expected.json"))) > 0
