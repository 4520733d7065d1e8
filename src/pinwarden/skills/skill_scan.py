"""The scan of a skill, which finds text, commands and files that a person should review before an agent obeys them.

A skill is full of orders and examples, so it is judged passage by passage: a phrase counts if the whole sentence around
it seems to manipulate the model. Code blocks are searched only for commands and hidden characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from pinwarden.core.record import Record
from pinwarden.skills.powers import Power, find_powers
from pinwarden.skills.skill import Skill, SkillFile
from pinwarden.surface.scan.classifier import measure_steering
from pinwarden.surface.scan.cues import Cue, find_cues
from pinwarden.surface.scan.scan import ScanFinding, Severity
from pinwarden.surface.sentences import split_sentences

MESSAGES: Mapping[str, str] = {
    "agent_instruction": "gives the model orders that no skill needs",
    "concealment": "asks the model to hide something from the user",
    "exfiltration": "asks the model to send private data somewhere else",
    "impersonation": "poses as the system, the user or a message of the conversation",
    "hidden_characters": "contains characters that a model reads but a person does not see",
    "terminal_escape": "contains control characters that change what a terminal shows",
    "encoded_payload": "contains encoded text that decodes to a command or an instruction",
    "oversized_text": "is too long to be checked completely",
    "download_and_run": "runs what it downloads, without a check of the bytes",
    "remote_instructions": "makes the model follow instructions of a page that can change at any time",
    "injected_command": "runs a command as soon as the skill is loaded",
    "index_redirected": "installs packages from another index than the usual one",
    "acts_alone": "makes the client act without being asked",
    "opaque_program": "is a program that a person cannot review",
}
"""The message of each code of the scan of skills."""

_PHRASE_CODES = frozenset({"agent_instruction", "concealment", "exfiltration", "impersonation"})
_PAYLOAD_CODES = frozenset({"encoded_payload", "oversized_text"})
_MIN_EVIDENCE = 0.2
_MIN_EVIDENCE_OF_SENDING = 2.0
"""The log-odds, relative to what the scan of a server needs, that a sentence with a phrase needs here. Sentences about
sending data are common in skills for programmers."""
_HIDES_FROM_USER = re.compile(r"(?i)\b(?:tell|mention|inform|reveal|show|disclos|notif|alert|report|say|let)|secret")
_HIDDEN = re.compile(
    "[\u202a-\u202e\u2066-\u2069\U000e0001-\U000e007f\U000e0100-\U000e01ef]"
    "|[\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff\u3164\u180e]{4,}"
)
"""Characters that reorder or hide text. Single joiners and selectors, as in emoji, hide nothing."""
_TAGS = re.compile("[\U000e0020-\U000e007e]")
_ESCAPE = re.compile("\x1b[\\[\\]PX^_]|[\x9b\x9d]")
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})")
_NEW_PASSAGE = re.compile(r"[ \t]*(?:[-*+]|\d+[.)]|#+|\||>)[ \t]*\S")
_MAX_SCANNED = 1024 * 1024
"""Characters of one file. A longer file is a warning, so that nothing can hide behind its first part."""
_MAX_PASSAGE, _PASSAGE_OVERLAP = 4_000, 400
_MAX_LINE, _LINE_OVERLAP = 2_000, 900
"""Longer passages and lines are searched in pieces that overlap, because searching takes quadratic time."""
_MAX_LINES = 50  # of one passage: data files have no blank lines
_MAX_EXCERPT = 120

_GET = r"(?:curl|wget|fetch|aria2c|invoke-webrequest|invoke-restmethod|iwr|irm)\b"
_SHELL = (
    r"(?:sudo\s+(?:-\w+\s+)*)?(?:env\s+)?(?:/\S*/)?"
    r"(?:(?:ba|z|da|k|fi)?sh|python[\d.]*|node|perl|ruby|php|iex|invoke-expression|pwsh|powershell)\b"
)
_DOWNLOAD_AND_RUN = re.compile(
    rf"{_GET}[^\n|]{{0,500}}\|(?:[^\n|]{{0,200}}\|)?\s*{_SHELL}"
    rf"|(?:{_SHELL}\s+(?:-\w+\s+)*|\beval\s+|\bsource\s+|^\s*\.\s+)[\"']?(?:<\(|\$\(|`)\s*{_GET}"
    rf"|\b(?:iex|invoke-expression)\b[^\n]{{0,80}}\b(?:iwr|irm|invoke-webrequest|invoke-restmethod|downloadstring)\b"
    rf"|{_GET}[^\n]{{0,300}}(?:\s-[a-zA-Z]{{0,8}}[oO]|\s--output|>)[\s=]*([^\s;&|]{{1,200}}+)[^\n]{{0,200}}(?:&&|;)\s*(?:chmod\s+\S+\s+\S+\s*(?:&&|;)\s*)?"
    rf"(?:{_SHELL}\s+)?(?:\./)?\1\b",
    re.IGNORECASE | re.MULTILINE,
)
_INSTALLERS = re.compile(
    r"https://(?:astral\.sh|sh\.rustup\.rs|get\.docker\.com|bun\.sh|deno\.land|claude\.ai|get\.pnpm\.io|install\.python-poetry\.org"
    r"|raw\.githubusercontent\.com/(?:nvm-sh|Homebrew)/)[^\s]*"
)
"""Installers of common tools, which their documentation says to run like this."""
_URL = r"https?://[^\s)>\"'`]{4,200}"
_OBEY = r"(?:follow|obey|execute|run|perform|apply|carry out|comply with|act on|do)"
_ORDERS = r"(?:instructions?|steps?|commands?|directions?|orders?|guidelines?|rules?|prompts?)"
_READ = r"(?:fetch|download|read|load|open|visit|retrieve|get|check|browse|webfetch|go to|consult|pull)"
_REMOTE_INSTRUCTIONS = re.compile(
    rf"\b{_READ}\b(?:[^\n.]|\.(?!\s)){{0,100}}{_URL}[^\n]{{0,120}}\b{_OBEY}\b(?:\s+\w+){{0,4}}?\s+(?:{_ORDERS}|it|them|what|whatever|everything)\b"
    rf"|\b{_OBEY}\b(?:\s+\w+){{0,4}}?\s+{_ORDERS}\b[^\n.]{{0,60}}\b(?:at|from|on|in)\b\s+[<(\[]?{_URL}",
    re.IGNORECASE,
)
_INDEX_REDIRECTED = re.compile(
    r"(?:--(?:extra-)?index-url|--default-index|--registry|--index|--find-links|--source)[ =]+[\"']?(https?://[^\s\"']+)"
    r"|\b(?:PIP_(?:EXTRA_)?INDEX_URL|UV_(?:DEFAULT_)?INDEX(?:_URL)?|NPM_CONFIG_REGISTRY|npm_config_registry|GOPROXY)=[\"']?(https?://[^\s\"']+)"
    r"|\b(?:npm|pnpm|yarn)\s+config\s+set\s+(?:@\S+:)?registry[ =]+[\"']?(https?://[^\s\"']+)"
    r"|\bpip[\d.]*\s+config\s+set\s+\S*index-url\s+[\"']?(https?://[^\s\"']+)"
)
_HERE = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\])(?:[:/]|$)")
_RISKY_COMMAND = re.compile(
    rf"{_GET}|\b(?:nc|ncat|netcat|ssh|scp|base64|openssl|osascript|security|printenv|rm|chmod|eval|crontab|nohup)\b"
    r"|(?:\.ssh|\.aws|\.env\b|id_rsa|credentials|\.netrc|\.npmrc|keychain|/etc/passwd)|https?://|\$\(|`|>\s*[~/]",
    re.IGNORECASE,
)
_ALONE = frozenset({"hooks", "server", "plugin"})


class _Match(Record):
    code: str
    excerpt: str
    severity: Severity = "warning"
    message: str = ""


def scan_skill(skill: Skill) -> tuple[ScanFinding, ...]:
    """Scan all files of a skill. Returns the findings in the order of the files."""
    findings: list[ScanFinding] = []
    for file in skill.files:
        findings += (_build_finding(skill, file.path, match) for match in _scan_file(file))
    findings += (
        _build_finding(skill, "", match) for match in map(_judge_power, find_powers(skill)) if match is not None
    )
    return tuple(findings)


def split_passages(text: str) -> Iterator[str]:
    """Yield the paragraphs, list items and headings of a Markdown text, without its code blocks."""
    passage: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark is not None and mark[1].startswith(fence) else fence
            continue
        if mark is not None or not line.strip() or _NEW_PASSAGE.match(line) or len(passage) >= _MAX_LINES:
            if passage:
                yield "\n".join(passage)
            passage = []
        if mark is not None:
            fence = mark[1]
        elif line.strip():
            passage.append(line)
    if passage:
        yield "\n".join(passage)


def _scan_file(file: SkillFile) -> Iterator[_Match]:
    text = file.text
    if text is None:
        if file.program is not None:
            message = f"is {file.program}, which a person cannot review"
            yield _Match(code="opaque_program", excerpt=file.path, message=message)
        return
    seen: set[str] = set()
    if len(text) > _MAX_SCANNED:
        yield _Match(code="oversized_text", excerpt=file.path)
        text = text[:_MAX_SCANNED]
    for match in (*_find_phrases(file, text), *_find_characters(text), *_find_commands(text)):
        if match.code not in seen:  # one finding per code and file, as for an item of a server
            seen.add(match.code)
            yield match


def cut_pieces(text: str, size: int, overlap: int) -> Iterator[str]:
    """Yield pieces of at most ``size`` characters that overlap."""
    for start in range(0, max(1, len(text) - overlap), size - overlap):
        yield text[start : start + size]


def _find_phrases(file: SkillFile, text: str) -> Iterator[_Match]:
    found: set[str] = set()
    for passage in split_passages(text) if file.kind == "prompt" else ():
        for piece in cut_pieces(passage, _MAX_PASSAGE, _PASSAGE_OVERLAP):
            for cue in find_cues(piece):
                counts = cue.code in _PAYLOAD_CODES or cue.code in _PHRASE_CODES
                if counts and cue.code not in found and (cue.code in _PAYLOAD_CODES or _is_order(piece, cue)):
                    found.add(cue.code)
                    yield _Match(code=cue.code, excerpt=cue.excerpt)
        for piece in cut_pieces(" ".join(passage.split()), _MAX_LINE, _LINE_OVERLAP):
            remote = _REMOTE_INSTRUCTIONS.search(piece)
            if remote is not None:
                yield _Match(code="remote_instructions", excerpt=remote[0])


def _is_order(passage: str, cue: Cue) -> bool:
    """Whether a phrase is more than a quotation or an example."""
    if cue.is_quoted or (cue.code == "concealment" and not _HIDES_FROM_USER.search(cue.excerpt)):
        return False
    return _measure(passage, cue) >= (_MIN_EVIDENCE_OF_SENDING if cue.code == "exfiltration" else _MIN_EVIDENCE)


def _measure(passage: str, cue: Cue) -> float:
    taking_part = (part for part in split_sentences(passage) if part.start < cue.end and cue.start < part.end)
    return max((_measure_sentence(passage[part.start : part.end]) for part in taking_part), default=_MIN_EVIDENCE)


_measure_sentence = lru_cache(maxsize=4_096)(measure_steering)


def _find_characters(text: str) -> Iterator[_Match]:
    for code, pattern in (("hidden_characters", _HIDDEN), ("terminal_escape", _ESCAPE)):
        found = pattern.search(text)
        if found is not None:
            hidden = "".join(chr(ord(tag) - 0xE0000) for tag in _TAGS.findall(text))
            reads = (
                f"; the hidden text reads: {hidden[:_MAX_EXCERPT]!a}" if hidden and code == "hidden_characters" else ""
            )
            excerpt = text[found.start() : found.start() + _MAX_EXCERPT]
            yield _Match(code=code, excerpt=excerpt, message=MESSAGES[code] + reads)


def _find_commands(text: str) -> Iterator[_Match]:
    lines = text.replace("\\\n", " ").splitlines()
    for piece in (piece for line in lines for piece in cut_pieces(line, _MAX_LINE, _LINE_OVERLAP)):
        found = _DOWNLOAD_AND_RUN.search(piece)
        if found is not None and not _runs_known_installer(found[0]):
            yield _Match(code="download_and_run", excerpt=found[0])
        redirected = _INDEX_REDIRECTED.search(piece)
        if redirected is not None and not _HERE.match(next(filter(None, redirected.groups()))):
            yield _Match(code="index_redirected", excerpt=redirected[0])


def _runs_known_installer(command: str) -> bool:
    urls = re.findall(_URL, command)
    return bool(urls) and all(map(_INSTALLERS.fullmatch, urls))


def _judge_power(power: Power) -> _Match | None:
    if power.kind == "command":
        severity: Severity = "warning" if _RISKY_COMMAND.search(power.value) else "info"
        return _Match(code="injected_command", excerpt=power.value, severity=severity)
    if power.kind in _ALONE:
        return _Match(code="acts_alone", excerpt=power.value, message=f"{MESSAGES['acts_alone']}: it {power}")
    return None


def _build_finding(skill: Skill, path: str, match: _Match) -> ScanFinding:
    return ScanFinding(
        code=match.code,
        severity=match.severity,
        entity=skill.noun,
        name=skill.name,
        path=path if path != skill.name else "",
        message=match.message or MESSAGES[match.code],
        excerpt=match.excerpt[:_MAX_EXCERPT],
    )
