"""Collect sentences of API documentation as honest reference text: ``python -m tools.collect_docstrings WHEELS FILE``.

WHEELS is a folder with wheels of packages whose licence is Apache-2.0, BSD, ISC or MIT (others are skipped). Nothing in
a wheel is run. FILE gets at most ``PER_PACKAGE`` sentences of each package, chosen by their hash, under a line
``## NAME VERSION LICENCE``; it is compressed if its name ends in ``.xz``. The same wheels give the same file.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import lzma
import re
import warnings
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from pinwarden.surface.sentences import split_sentences

PER_PACKAGE = 900
MAX_FILE = 2_000_000
MIN_WORDS, MAX_LENGTH = 4, 400
_PERMISSIVE = re.compile(r"\bApache\b")
_DESCRIBING = ("description", "documentation")  # members of service definitions in JSON
_MARKUP = re.compile(r"</?[a-zA-Z][^>]{0,200}>")
_PATH = re.compile(r"[\w/.-]+\.(?:py|json)$")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", type=Path)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    lines: list[str] = []
    for wheel in sorted(arguments.wheels.glob("*.whl")):
        with ZipFile(wheel) as archive:
            name, licence = read_licence(archive)
            if _PERMISSIVE.search(licence):
                lines += [f"## {name} {licence}", *choose(read_texts(archive))]
    content = ("\n".join(lines) + "\n").encode()
    arguments.file.write_bytes(lzma.compress(content, preset=9) if arguments.file.suffix == ".xz" else content)


def read_licence(archive: ZipFile) -> tuple[str, str]:
    """Return the name and version of a wheel, and the name of its licence."""
    path = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = HeaderParser().parsestr(archive.read(path).decode("utf-8", "replace"))
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    stated = [metadata.get("License-Expression"), metadata.get("License"), *classifiers]
    licence = next((line.strip().partition("\n")[0][:60] for line in stated if line and line.strip()), "unknown")
    return f"{metadata['Name']} {metadata['Version']}", licence.rpartition(":: ")[2]


def read_texts(archive: ZipFile) -> Iterator[str]:
    for entry in sorted(archive.infolist(), key=lambda entry: entry.filename):
        if entry.file_size > MAX_FILE or not _PATH.match(entry.filename) or "/test" in entry.filename:
            continue
        content = archive.read(entry)
        try:
            if entry.filename.endswith(".py"):
                yield from read_docstrings(content)
            else:
                yield from read_descriptions(json.loads(content))
        except (SyntaxError, ValueError, RecursionError):
            continue


def read_docstrings(content: bytes) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        tree = ast.parse(content)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def read_descriptions(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, dict):
            yield from (current[name] for name in _DESCRIBING if isinstance(current.get(name), str))
        if isinstance(current, dict | list):
            pending += current.values() if isinstance(current, dict) else current


def choose(texts: Iterator[str]) -> list[str]:
    found: dict[str, str] = {}
    for text in texts:
        plain = _MARKUP.sub("", text).replace('"', "'")
        for start, end, normalised in split_sentences(plain):
            sentence = " ".join(plain[start:end].split())
            if (
                len(sentence) <= MAX_LENGTH
                and len(sentence.split()) >= MIN_WORDS
                and not sentence.startswith((">", "#"))
            ):
                found.setdefault(hashlib.sha256(normalised.encode()).hexdigest(), sentence)
    return sorted(found[digest] for digest in sorted(found)[:PER_PACKAGE])


if __name__ == "__main__":
    main()
