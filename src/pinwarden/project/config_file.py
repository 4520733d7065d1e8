"""``pinwarden config``: check ``pinwarden.toml`` as a whole, and show which settings apply."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pinwarden.core.errors import EXIT_CLEAN, EXIT_REFUSED, PinwardenError
from pinwarden.core.report import Report, ReportTable, Row, get_error_row_code
from pinwarden.core.text import plural
from pinwarden.identity.remote_settings import parse_remotes
from pinwarden.identity.settings import parse_identity
from pinwarden.lock.gateway_policy import KEYS, RESULTS, GatewayPolicy
from pinwarden.lock.policy import POLICY_TABLES, parse_policy, parse_policy_file
from pinwarden.system.files import read_file

_MAX_BYTES = 1 << 20


def check_config(path: Path) -> Report:
    """Check every table of the file, each on its own, so that all mistakes are found in one run.

    Environment variables that the file names are not looked up.
    """
    data, document = _read(path)
    rows = tuple(_find_problems(data, document))
    found = ", ".join(f"[{name}]" for name in POLICY_TABLES if name in document) or "no table"
    summary = f"{plural(len(rows), 'problem')}" if rows else f"valid: {found}"
    problems = [{"table": row.entity, "code": row.code, "message": row.message} for row in rows]
    facts = {"file": str(path), "tables": sorted(document), "problems": problems}
    return Report(
        command="config check",
        subject=str(path),
        summary=summary,
        exit_code=EXIT_REFUSED if rows else EXIT_CLEAN,
        facts=facts,
        rows=rows,
        file=str(path),
    )


def explain_config(path: Path) -> Report:
    """List the settings that apply: those that the file states, and the defaults of the gateway's policy.

    Without a file, only the defaults. Raises the error of the first table that is invalid.
    """
    data, document = _read(path) if path.exists() else (b"", {})
    for _, parse in _list_parsers(data, document) if path.exists() else ():
        parse()
    policy = parse_policy(data) if "policy" in document else None
    settings = [*_list_stated(document), *_list_gateway_keys(policy.gateway if policy else None)]
    stated = sum(origin == "file" for _, _, origin in settings)
    return Report(
        command="config explain",
        subject=str(path),
        summary=f"{plural(stated, 'setting')} of the file, {plural(len(settings) - stated, 'default')}",
        exit_code=EXIT_CLEAN,
        facts={
            "file": str(path),
            "settings": [{"key": key, "value": value, "from": origin} for key, value, origin in settings],
        },
        table=ReportTable(headings=("setting", "value", "from"), rows=tuple(settings)),
    )


def _read(path: Path) -> tuple[bytes, dict[str, Any]]:
    data = read_file(path, _MAX_BYTES)
    try:
        return data, tomllib.loads(data.decode("utf-8"))
    except RecursionError as err:
        raise PinwardenError("POLICY_INVALID", f"{path} is nested too deeply") from err
    except ValueError as err:
        raise PinwardenError("POLICY_INVALID", f"{path} is not TOML: {err}") from err


def _list_parsers(data: bytes, document: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Iterate over the tables of the file with the function that reads each, and raises if it is invalid."""
    yield "policy", lambda: parse_policy_file(data)
    if "identity" in document:
        yield "identity", lambda: parse_identity(data, _EVERY_VARIABLE)
    if "remotes" in document:
        yield "remotes", lambda: parse_remotes(data, _EVERY_VARIABLE)


def _find_problems(data: bytes, document: Mapping[str, Any]) -> Iterator[Row]:
    for table, parse in _list_parsers(data, document):
        try:
            parse()
        except PinwardenError as err:
            yield Row(
                code=get_error_row_code(err),
                severity="critical",
                entity=f"[{table}]",
                name="",
                path="",
                message=err.message,
            )


def _list_stated(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Iterate over the settings in the file, apart from the keys of the gateway's policy."""
    gateway_keys = {_path_of(key.name, key.scope) for key in KEYS}
    for key, value in _flatten(document, ""):
        if key not in gateway_keys:
            yield key, value, "file"


def _list_gateway_keys(policy: GatewayPolicy | None) -> Iterator[tuple[str, str, str]]:
    applied = policy or GatewayPolicy(settings={})
    for key in KEYS:
        origin = "file" if key.name in applied.settings else "default"
        yield _path_of(key.name, key.scope), key.describe(applied.get(key.name)), origin


def _path_of(name: str, scope: str) -> str:
    return f"policy.gateway.results.{name}" if scope == RESULTS else f"policy.gateway.{name}"


def _flatten(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(item, f"{path}[{index}]")
    elif isinstance(value, list):
        yield path, ", ".join(map(str, value))
    else:
        yield path, str(value).lower() if isinstance(value, bool) else str(value)


class _EveryVariable(Mapping[str, str]):
    """The environment of a machine on which every variable is set."""

    def __getitem__(self, name: str) -> str:
        return "set"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_EVERY_VARIABLE = _EveryVariable()
