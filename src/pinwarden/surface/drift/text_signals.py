"""Signs of an attack in how a text changed, which need no list of suspicious phrases.

The functions compare a new sentence with the approved ones: one that says the opposite, one that orders a call of
something that the server does not have,
one that moves data to a new host, one that claims to be harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pinwarden.core.text import lazy_pattern
from pinwarden.surface.scan.hidden_text import parse_words

_WORD = re.compile(r"[^\s,;:()\[\]{}\"`]+")

# Orders that name something that the server does not have

_CALL_ORDER = lazy_pattern(
    r"\b(?:call|invoke|run|execute|trigger|consult|(?:always|must|then|also|first|instead) use"
    r"|(?:hand|pass|give|send)\b[^.]{0,60}? to)\s+"
    r"(?:(?:the|a|an|your|our|also|only|first|then|tool|function|named|called|always|it|into)\s+){0,3}"
    r"[`'\"*]{0,3}([A-Za-z][\w.\-]{2,80})(?:\(\))?[`'\"*]{0,3}",
    re.IGNORECASE,
)
_CALL_DONE = lazy_pattern(
    r"[`'\"*]{0,3}([A-Za-z][\w.\-]{2,80})(?:\(\))?[`'\"*]{0,3}\s+"
    r"(?:(?:has|have|had|was|were|is|are|been|be|must|should|first|already|also)\s+){1,4}"
    r"(?:run|called|invoked|executed|triggered|consulted|finished|completed|succeeded)\b",
    re.IGNORECASE,
)
_TOOL_LIKE = lazy_pattern(r"(?:[a-z][a-z0-9]*(?:[_.][a-z][A-Za-z0-9]*)+|[a-z]{2,}(?:[A-Z][a-z0-9]+)+)$")
_FILE_LIKE = lazy_pattern(r"\.[a-z0-9]{1,5}$|^(?:e\.g|i\.e)")
IDENTIFIER = lazy_pattern(r"[A-Za-z][A-Za-z0-9]*(?:[_\-.]+[A-Za-z0-9]+)+|[a-z]+(?:[A-Z][A-Za-z0-9]*)+")


def find_ordered_identifiers(sentence: str) -> Iterator[str]:
    """Yield the identifiers in the form of a tool name that a sentence orders the model to call or use.

    "After share_notes has run" orders a call as well as "run share_notes".
    """
    for match in _CALL_ORDER.finditer(sentence):
        name = match[1].rstrip(".-_")
        is_called = "." not in name or match[0].split()[0].casefold() in ("call", "invoke", "run", "execute", "trigger")
        if is_called and _TOOL_LIKE.match(name) and not _FILE_LIKE.search(name):
            yield name
    for match in _CALL_DONE.finditer(sentence):
        if "." not in match[1] and _TOOL_LIKE.match(match[1]):
            yield match[1]


def fold_identifier(name: str) -> str:
    """Return an identifier without case and separators: ``read-file`` and ``readFile`` are the same."""
    return name.replace("_", "").replace("-", "").replace(".", "").casefold()


# Sentences that move data to a host

_MOVES_DATA = lazy_pattern(
    r"\b(?:send|sent|post|upload|forward|transmit|relay|submit|deliver|mirror|e?mail|push|pipe|stream|report|cop(?:y|ies)"
    r"|copied|b?cc|sync|transfer|share|export|publish|notify|register|log|save|store|back ?up|write|written|append"
    r"|attach|ping|route|redirect|proxy|fetch|download|install|execute|run|curl|wget|connect|exfiltrate|pass|hand|give|provide"
    r"|suppl(?:y|ies)|feed|collect|archive|deposit|move|dispatch|replicate|call|invoke|use|load)(?:e?s|e?d|ing|ped|ging)?\b",
    re.IGNORECASE,
)
_TOWARDS = lazy_pattern(r"\b(?:to|into|via|through|at|with|on|from|by)\b[^.()\[\]]{0,40}$", re.IGNORECASE)
_RECEIVES = lazy_pattern(r"\S*\s+(?:\w+\s+){0,2}(?:receiv|get|collect|stor|log|record|need|expect)\w*\b", re.IGNORECASE)


def moves_data(before: str, after: str) -> bool:
    """Whether a sentence moves data to or from an address and does more than refer to it.

    ``before`` and ``after`` are the parts of the sentence around the address.
    """
    if _RECEIVES.match(after):
        return True
    return _TOWARDS.search(before) is not None and _MOVES_DATA.search(before) is not None


# What a tool does, by its name and its description

_WRITING = parse_words(
    "create add update delete remove write edit set send post put patch insert upload move rename drop push commit "
    "merge deploy publish install uninstall save store modify change replace append overwrite destroy purge wipe reset "
    "clear cancel close archive transfer pay purchase buy order submit approve reject grant revoke assign unassign "
    "enable disable start stop restart kill terminate restore rollback import sync register unregister invite share "
    "reply comment upsert truncate"
)
_READING = parse_words(
    "get list read search find fetch describe show view query check count is has lookup look browse inspect analyze "
    "analyse validate explain compare summarize preview retrieve watch monitor ping status diff"
)
_ADDING = parse_words("create add insert append comment reply")
_DESTROYING = parse_words("delete remove drop purge wipe destroy erase truncate uninstall overwrite kill terminate")
_ERASING = _DESTROYING - parse_words("remove uninstall kill terminate")
_CLAIMS_READ_ONLY = lazy_pattern(
    r"\b(?:is|are|purely|strictly|completely) (?:a )?read[ -]?only\b|^\W*read[ -]?only\b"
    r"|\b(?:does not|never|will not) (?:modif(?:y|ies)|changes?|writes?|alters?) (?:any|anything|data)\b"
    r"|\b(?:no|without) (?:side[ -]effects?|modifications?|changes|writes)\b",
    re.IGNORECASE,
)


_NAME_WORD = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_a-zA-Z]+")


def split_name_words(name: str) -> list[str]:
    """Split a name into words. ``read_file``, ``read-file`` and ``readFile`` have the same words."""
    return [word.lower() for word in _NAME_WORD.findall(name)]


_GENERATED_TITLE_WORDS = parse_words(
    "arguments args input output schema params parameters result results response dict"
)


def restates(title: object, names: set[str]) -> bool:
    """Whether a title only has words of ``names``, as titles of schema generators do."""
    if not isinstance(title, str):
        return False
    words = split_name_words(title)
    return bool(words) and names.union(_GENERATED_TITLE_WORDS).issuperset(words)


def find_main_verb(name_words: list[str], description: str) -> str:
    """Return the verb that says what a tool does: the first known verb in its name, or the first word of its text."""
    for word in name_words:
        if word in _WRITING or word in _READING:
            return word
    for match in _WORD.finditer(description.casefold()[:200]):
        word = match[0].strip(".")
        if word.endswith("ly"):
            continue
        for form in (word, word.removesuffix("s"), word.removesuffix("es"), word.removesuffix("d")):
            if form in _WRITING or form in _READING:
                return form
        break
    return ""


# The place of a verb that says what the tool does: "Deletes", "This tool deletes", "... and deletes", "Then delete".
_FIRST_VERB = lazy_pattern(r"\W*([a-z]{3,12}?)(?:e?s)?\b(?![-:(_=])", re.IGNORECASE)
_PREDICATE = lazy_pattern(
    r"\b(?:(?:this|the) (?:tool|operation|call|function)|it|and|then)(?: also| then| automatically| silently)? "
    r"([a-z]{3,12}?)(?:e?s|d)?\b(?![-:(_=])",
    re.IGNORECASE,
)
_UNAMBIGUOUS = parse_words(
    "delete remove overwrite install uninstall send upload publish modify purge wipe destroy erase deploy push "
    "transfer forward pay purchase buy approve grant revoke terminate kill disable submit"
)


def announces_writing(sentence: str) -> bool:
    """Whether a sentence says that something is changed, sent or destroyed."""
    first = _FIRST_VERB.match(sentence)
    words = [match[1].casefold() for match in (*_PREDICATE.finditer(sentence), first) if match]
    return any(form in _UNAMBIGUOUS for word in words for form in (word, f"{word}e"))


_PURPOSE = lazy_pattern(r"\b(?:to|if|when|instead|e\.g|see|via|through|or|whether|unless)\b|^\W*for\b", re.IGNORECASE)


_INSISTENCE = lazy_pattern(r"\b(?:always|must|afterwards?|has to|have to|every time|each time|never)\b", re.IGNORECASE)


def is_bare_order(sentence: str) -> bool:
    """Whether a sentence only orders: it insists, or it does not say why or when to do something."""
    return _INSISTENCE.search(sentence) is not None or _PURPOSE.search(sentence) is None


_ADDRESSEE = lazy_pattern(
    r"\b(?:you|your|assistants?|agents?|models?|llms?|ai|claude|gpt|copilot|gemini)\b(?![ _-]?(?:id|ids|name|names|type"
    r"|list|config|version|provider|card|s))",
    re.IGNORECASE,
)


def addresses_model(sentence: str, name: str) -> bool:
    """Whether a sentence speaks to the model, which has no place in a title or the schema of a result.

    A word that is part of the tool's ``name`` is its subject.
    """
    match = _ADDRESSEE.search(sentence)
    return match is not None and match[0].casefold().removesuffix("s") not in name.casefold()


def reads(verb: str) -> bool:
    """Whether a verb only looks at something."""
    return verb in _READING


def adds(verb: str) -> bool:
    """Whether a verb creates something and leaves what exists as it is."""
    return verb in _ADDING


def writes(verb: str) -> bool:
    """Whether a verb changes something."""
    return verb in _WRITING


def describes_destruction(description: str) -> bool:
    """Whether the first word of a description says that something is deleted or stopped."""
    return destroys(find_main_verb([], description))


def destroys(verb: str) -> bool:
    """Whether a verb makes data or a process disappear."""
    return verb in _DESTROYING


def erases(verb: str) -> bool:
    """Whether a verb makes data disappear, and not only stops or detaches something."""
    return verb in _ERASING


def claims_read_only(sentence: str) -> bool:
    """Whether a sentence says that the tool changes nothing."""
    return _CLAIMS_READ_ONLY.search(sentence) is not None
