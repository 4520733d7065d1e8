"""Plaintext secrets in client configurations. Findings never contain a value.

``audit_locked`` audits the entries of a lock, with the finding kinds and messages of ToolPin. ``audit_servers`` audits
every configured server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pinwarden.clients.config import ConfigFile, ConfiguredServer, DeclaredInput, normalize_entry
from pinwarden.clients.secret_references import describe_secret_fix
from pinwarden.clients.table import get_client
from pinwarden.core.record import Record
from pinwarden.lock.locked_config import ConfigLocation, LockedConfig, find_configured_entry
from pinwarden.system.masking import MASK, is_reference, looks_secret, mask_name, mask_url, mask_words

_TOOLPIN_PREFIXES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("GitHub token", re.compile(r"ghp_|github_pat_")),
    ("OpenAI-style token", re.compile(r"sk-[A-Za-z0-9_-]{8,}")),
    ("AWS access key", re.compile(r"AKIA[A-Z0-9]{12,}")),
    ("Slack token", re.compile(r"xox[baprs]-")),
    ("Google API key", re.compile(r"AIza[0-9A-Za-z_-]{8,}")),
    ("private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
)
"""Secret prefixes that ToolPin recognises, with ToolPin's name for each."""

FileLocation = tuple[str, str | None]
"""A file and its scope."""

_INPUT = "input"

SecretKind = Literal["plaintext_secret", "secret_prefix", "missing_config", "unreadable_config", "invalid_scope"]


class SecretFinding(Record):
    """One plaintext secret, or a file that could not be searched. Never contains the value."""

    kind: SecretKind
    key: str
    """The key of the lock entry; empty if the server is not locked."""
    client: str
    name: str
    file: str
    scope: str | None
    message: str
    secret_name: str | None = None
    secret_source: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the finding with the members and the order that ToolPin prints."""
        shown: dict[str, Any] = {
            "kind": self.kind,
            "key": self.key,
            "client": self.client,
            "serverName": self.name,
            "file": self.file,
        }
        if self.scope is not None:
            shown["scope"] = self.scope
        if self.secret_name is not None:
            shown |= {"secretName": self.secret_name, "secretSource": self.secret_source}
        shown["message"] = self.message
        if self.secret_name is not None:
            shown["redactedValue"] = "[REDACTED]"
        return shown


class SecretsReport(Record):
    """The number of audited entries, and the findings."""

    checked: int
    findings: tuple[SecretFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """Return the report as ``toolpin secrets audit --json`` prints it."""
        return {"ok": self.ok, "checked": self.checked, "findings": [finding.to_json() for finding in self.findings]}


def audit_locked(
    locked: Iterable[LockedConfig],
    files: Mapping[str, ConfigFile],
    paths: Mapping[ConfigLocation, str],
    *,
    scope: str = "all",
) -> SecretsReport:
    """Audit the clients' files for the secrets that a lock declares, as ToolPin does."""
    entries = tuple(locked)
    findings = [finding for entry in entries for finding in _audit_entry(entry, files, paths, scope)]
    return SecretsReport(checked=len(entries), findings=tuple(findings))


def audit_servers(servers: Iterable[ConfiguredServer]) -> SecretsReport:
    """Audit every configured server, locked or not, for plaintext secrets."""
    audited = tuple(servers)
    return SecretsReport(
        checked=len(audited), findings=tuple(finding for server in audited for finding in _audit_server(server))
    )


def audit_inputs(files: Iterable[ConfigFile]) -> tuple[SecretFinding, ...]:
    """Return every declared input whose default is a secret. Any default of a password input counts as one."""
    return tuple(
        SecretFinding(
            kind="plaintext_secret",
            key="",
            client=file.client,
            name="",
            file=file.path,
            scope=file.scope,
            message=f"input:{declared.id} suggests what looks like a secret; remove that default",
            secret_name=declared.id,
            secret_source=_INPUT,
        )
        for file in files
        for declared in file.inputs
        if any(_suggests_secret(declared, text) for text in declared.literals)
    )


def _audit_entry(
    entry: LockedConfig, files: Mapping[str, ConfigFile], paths: Mapping[ConfigLocation, str], scope: str
) -> Iterator[SecretFinding]:
    scopes = ("project", "global") if scope == "all" else (scope,)
    locations = [
        (scope_name, paths[entry.client, scope_name]) for scope_name in scopes if (entry.client, scope_name) in paths
    ]
    missing: list[tuple[str, str]] = []
    is_settled = False
    for file_scope, path in locations:
        file = files.get(path)
        config = find_configured_entry(file, entry) if file else None
        if file and file.fault:
            is_settled = True
            yield _build_finding("unreadable_config", entry, (path, file_scope), f"{path}: {file.problem}")
        elif config is None:
            missing.append((file_scope, path))
        else:
            is_settled = True
            yield from _find_locked_secrets(entry, (path, file_scope), config)
    if not is_settled and missing:
        where = f" in checked scopes: {', '.join(file_scope for file_scope, _ in missing)}" if scope == "all" else ""
        message = f"missing {entry.client} config entry for {entry.name}{where}"
        files_looked_for = ", ".join(path for _, path in missing)
        yield _build_finding("missing_config", entry, (files_looked_for, None if scope == "all" else scope), message)
    elif not is_settled:
        yield _build_finding("invalid_scope", entry, ("", None), f"cannot audit {entry.client} at {scope} scope")


def _find_locked_secrets(
    entry: LockedConfig, where: FileLocation, config: Mapping[str, Any]
) -> Iterator[SecretFinding]:
    values = list(_list_env_and_headers(entry.client, config))
    reported: set[tuple[str, str]] = set()
    for name, source in entry.secrets:
        value = next((text for kind, key, text in values if (kind, key) == (source, name)), "")
        if value and not _is_toolpin_reference(value, name):
            reported.add((source, name))
            message = (
                f"{source}:{name} is stored as a plaintext value; "
                "replace it with a placeholder or external secret reference"
            )
            yield _build_finding("plaintext_secret", entry, where, message, (name, source))
    for source, name, value in values:
        label = next((label for label, pattern in _TOOLPIN_PREFIXES if pattern.match(value)), None)
        if label and (source, name) not in reported:
            message = f"{source}:{name} resembles a {label}; replace it with a placeholder or external secret reference"
            yield _build_finding("secret_prefix", entry, where, message, (name, source))


def _build_finding(
    kind: SecretKind, entry: LockedConfig, where: FileLocation, message: str, secret: tuple[str, str] | None = None
) -> SecretFinding:
    return SecretFinding(
        kind=kind,
        key=entry.key,
        client=entry.client,
        name=entry.name,
        file=where[0],
        scope=where[1],
        message=message,
        secret_name=secret[0] if secret else None,
        secret_source=secret[1] if secret else None,
    )


def _is_toolpin_reference(value: str, name: str) -> bool:
    text = value.strip()
    spaced = re.fullmatch(r"\$\{\{\s*secrets\.(.*?)\s*\}\}", text)
    return (
        text in (f"<{name}>", f"${{env:{name}}}", f"${{{name}}}")
        or (spaced is not None and spaced[1] == name)
        or text.startswith(("op://", "vault://", "doppler://"))
    )


def _suggests_secret(declared: DeclaredInput, text: str) -> bool:
    return looks_secret(declared.id, text) or (declared.password and bool(text) and not is_reference(text))


def _audit_server(server: ConfiguredServer) -> Iterator[SecretFinding]:
    if type(server.entry) is not dict:
        return
    for source, name in _find_secrets(server):
        yield SecretFinding(
            kind="plaintext_secret",
            key="",
            client=server.client,
            name=server.name,
            file=server.path,
            scope=server.scope,
            message=f"{source}:{name} has what looks like a plaintext secret. "
            + describe_secret_fix(server.client, mask_name(server.name), source, mask_name(name)),
            secret_name=name,
            secret_source=source,
        )


def _find_secrets(server: ConfiguredServer) -> Iterator[tuple[str, str]]:
    fields = normalize_entry(server.entry, get_client(server.client))
    for source, name, value in _list_env_and_headers(server.client, server.entry):
        if looks_secret(name, value):
            yield source, name
    words = [word for word in (fields["command"], *fields["args"]) if type(word) is str]
    for index, (word, shown) in enumerate(zip(words, mask_words(words), strict=True)):
        if MASK in shown and MASK not in word:
            yield "args", str(index - 1) if index else "command"
    if type(fields["url"]) is str and MASK in mask_url(fields["url"]):
        yield "url", "address"
    known = ("command", "args", "env", "url", "headers")
    for member, value in fields.items():
        if member not in known:
            yield from (("member", path) for path in _find_secret_members(member, member, value))


def _find_secret_members(path: str, name: str, value: Any) -> Iterator[str]:
    """Yield the paths of secrets in members that the client does not use. They are stored in plain text too."""
    if type(value) is dict:
        for member, part in value.items():
            yield from _find_secret_members(f"{path}.{member}", member, part)
    elif type(value) is list:
        for index, part in enumerate(value):
            yield from _find_secret_members(f"{path}.{index}", name, part)
    elif type(value) is str and looks_secret(name, value):
        yield path


def _list_env_and_headers(client: str, entry: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    fields = normalize_entry(entry, get_client(client))
    for source, member in (("env", "env"), ("header", "headers")):
        values = fields[member]
        if type(values) is dict:
            yield from ((source, name, value) for name, value in values.items() if type(value) is str)
