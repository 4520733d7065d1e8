"""One word per concept: no private vocabulary in source and documentation, and no synonyms of glossary terms."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
FORBIDDEN = re.compile(
    r"\b(nobody|somebody|whoever|anew|told|tells? of|hold(?:s|ing)? against|held against|good no more"
    r"|withheld|held back|goes nowhere|taken back|workshop|ears|everybody|anybody|for ever|the way there|who asks"
    r"|looked into|leads? elsewhere|spelt out|shut in|worked out|gives? out|vouch(?:es|ed)?"
    r"|altogether|behind its back|come upon|goes on)\b",
    re.IGNORECASE,
)
TO_DO: tuple[str, ...] = ()
"""Folders and files that still contain such words. Remove an entry when it is clean; add none."""
CODE_SPAN = re.compile(r'`[^`]*`|"[a-z_]+"')
ATTACK_PHRASES = tuple(
    f"src/pinwarden/surface/scan/{name}.py" for name in ("order_phrases", "concealment_phrases", "sentence_features")
)
"""Files with patterns of attack text. Their string literals, apart from docstrings, are data and not our words."""
STRING = re.compile(r'(?<!")r?f?"(?!"")(?:[^"\\]|\\.)*"')


def test_source_and_documentation_avoid_the_private_vocabulary() -> None:
    paths = _tracked("src", "docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    assert list(_occurrences(paths, FORBIDDEN)) == []


def test_help_documentation_and_schemas_use_the_terms_of_the_glossary() -> None:
    glossary = (REPOSITORY / "docs/glossary.md").read_text(encoding="utf-8")
    synonyms = {phrase for row in glossary.splitlines() if row.startswith("| ") for phrase in _quoted(row)}
    pattern = re.compile(r"\b(" + "|".join(sorted(map(re.escape, synonyms))) + r")\b", re.IGNORECASE)
    paths = [path for path in _tracked("docs", "README.md", "src/pinwarden/cli") if path != "docs/glossary.md"]
    assert synonyms
    assert list(_occurrences(paths, pattern)) == []


def _quoted(row: str) -> list[str]:
    return re.findall(r'"([^"]+)"', row.split("|")[3])


def _occurrences(paths: list[str], pattern: re.Pattern[str]) -> Iterator[str]:
    for path in paths:
        if path.startswith(TO_DO) or path == "docs/glossary.md":
            continue
        for number, line in enumerate((REPOSITORY / path).read_text(encoding="utf-8").splitlines(), 1):
            # Names of tests and JSON members, and codes in quotes, are not prose.
            prose = STRING.sub("", line) if path in ATTACK_PHRASES else line
            match = pattern.search(CODE_SPAN.sub("", prose).replace("_", " "))
            if match:
                yield f"{path}:{number}: {match[0]}"


def _tracked(*places: str) -> list[str]:
    command = ["git", "ls-files", "-z", "--", *places]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    return [name for name in names if name.endswith((".py", ".md", ".json")) and (REPOSITORY / name).is_file()]
