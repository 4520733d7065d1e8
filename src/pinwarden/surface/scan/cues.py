"""Cues: places in model-visible text that look like an attack.

Ordinary text pays for one pass over its words. Only where a word is found that some rule needs are the rules that
need it tried, on a plain form of the text that the usual disguises do not survive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from pinwarden.core.record import Record
from pinwarden.surface.scan import exfiltration as theft
from pinwarden.surface.scan import hidden_text
from pinwarden.surface.scan.hidden_text import (
    ROTATED_WORDS,
    PhraseRule,
    PlainText,
    compile_phrase,
    find_encoded_texts,
    find_filled_urls,
    find_unseen_text,
    has_digits_for_letters,
    is_command,
    long_pieces,
    plain,
    spaced_letters,
    undo_rotations,
    with_letters_for_digits,
)
from pinwarden.surface.scan.other_languages import in_other_scripts
from pinwarden.surface.scan.phrase_rules import PHRASE_RULES

CUE_CODES = (
    "agent_instruction",
    "concealment",
    "exfiltration",
    "impersonation",
    "hidden_characters",
    "terminal_escape",
    "homoglyph",
    "encoded_payload",
    "oversized_text",
    "secret",
    "destination",
)
"""Every code that a cue can carry."""

ATTACK_CODES = frozenset(CUE_CODES) - {"secret", "destination"}
"""The codes that are suspicious on their own. Honest text names addresses and key files too."""

MAX_TEXT = 131_072
"""How many characters are examined. The longest ``instructions`` of 8,235 live servers had 68,669."""

_MAX_EXCERPT = 120


class Cue(Record):
    """One place in a text. ``start`` and ``end`` count characters of the text as it was sent."""

    code: str
    start: int
    end: int
    excerpt: str
    """The text there, unescaped and cut off: escape it before showing it."""
    mentioned: bool = False
    """Whether the text seems to talk about the phrase (a guard, a test fixture) and not to use it."""


def find_cues(text: str) -> tuple[Cue, ...]:
    """Every cue in ``text``, in the order of their places; at most one per code and place."""
    length = len(text)
    examined = text if length <= MAX_TEXT else text[:MAX_TEXT]
    found = _found(examined)
    if length > MAX_TEXT:  # what is not examined is not innocent
        found[("oversized_text", MAX_TEXT)] = (length, False)
    return tuple(
        Cue(code=code, start=start, end=end, excerpt=text[start : min(end, start + _MAX_EXCERPT)], mentioned=mentioned)
        for (code, start), (end, mentioned) in sorted(found.items(), key=lambda item: (item[0][1], item[0][0]))
    )


# Letters and digits stay, in lower case, and so does + (base64); all else parts words.
_TO_WORDS = bytes(
    ord(chr(byte).lower()) if chr(byte).isascii() and (chr(byte).isalnum() or byte == 0x2B) else 0x20
    for byte in range(256)
)
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\n"
_LONG_VOCABULARY = frozenset((b"additionalproperties",))  # of schemas; the only word of theirs that is so long
_LONG_WORD = 18  # shorter than any wrapped command worth its trouble
_SHORTEST = 4  # no cue is shorter than .env
_SINGLE_LETTERS = frozenset((b"o", b"r", b"l"))  # one of them stands alone in any spaced-out phrase
_HOST = re.compile(r"\.(?:\d{1,3}\.\d|(?i:com|net|org|io|xyz|onion|site|info|tld|example|ru|cn|tk|top)\b)")


class Words:
    """The words of a text, made once for all that ask for them. What is not ASCII parts words."""

    __slots__ = ("known", "longest", "words")

    def __init__(self, text: str) -> None:
        words = text.encode("ascii", "replace").translate(_TO_WORDS).split()
        self.words = frozenset(words)
        self.known = _GATES & self.words
        """Those that some rule waits for."""
        self.longest = max(map(len, self.words - _LONG_VOCABULARY), default=0)

    def have(self, some: frozenset[bytes]) -> bool:
        """Whether one of ``some`` is among them."""
        return not self.words.isdisjoint(some)


def may_hold_cues(texts: str, words: Words) -> bool:
    """Whether any of ``texts``, which double quotes part, can hold a cue; False is certain, True is not."""
    if len(texts) > MAX_TEXT or not texts.isascii() or texts.encode().translate(None, _PRINTABLE):
        return True
    if _names_destination(texts) or ("<" in texts and any(find_unseen_text(texts))):
        return True
    if words.longest >= _LONG_WORD and any(_payloads(long_pieces(texts))):
        return True
    if (not _is_flat(texts) or _has_single_letters(words)) and any(_payloads(texts)):
        return True
    turns = _turns_for(words.known)
    stealing = _may_hold_theft(words.known)
    lower = texts.lower()
    turned = _may_be_turned(lower, words)
    if not turns and not stealing and not turned:
        return False
    flat = " ".join(lower.split())
    if turned and _is_turned(flat, words):
        return True
    shown = [text for text in flat.split('"') if len(text) >= _SHORTEST]
    return any(_hold_turn(shown, turn, words) for turn in turns) or (stealing and _hold_theft(shown, words))


def _hold_turn(texts: list[str], turn: PhraseRule, words: Words) -> bool:
    gate = [word for word in turn.gates[0] if word.encode() in words.known]
    candidates = [text for text in texts if any(word in text for word in gate)]
    return any(compile_phrase(pattern).search(text) for pattern in turn.patterns for text in candidates)


def _hold_theft(texts: list[str], words: Words) -> bool:
    rare = [word.decode() for word in words.known & _THEFT_RARE]
    return any(
        (any(_secrets(text)) or any(theft.thefts(text)))
        for text in texts
        if any(word in text for word in rare) or (" " in text and _may_hold_theft(Words(text).known))
    )


def _is_flat(text: str) -> bool:
    """Whether text has none of the marks by which single characters are written as numbers."""
    if "\\" in text and ("\\x" in text or "\\u" in text):
        return False
    return text.count("%") < 6 and not ("&" in text and "&#" in text)


def _has_single_letters(words: Words) -> bool:
    return not words.known.isdisjoint(_SINGLE_LETTERS)


def _names_destination(text: str) -> bool:
    return "://" in text or "@" in text or _HOST.search(text) is not None


def _may_hold_theft(words: frozenset[bytes]) -> bool:
    if not words.isdisjoint(_THEFT_RARE):
        return True
    if words.isdisjoint(_THEFT_PAIRED_FIRST):
        return False
    return any(not any(gate.isdisjoint(words) for gate in gates) for gates in _THEFT_PAIRED)


_Found = dict[tuple[str, int], tuple[int, bool]]


def _found(text: str) -> _Found:
    found: _Found = {}
    for code, start, end, mentioned in _places(text):
        key = (code, start)
        known = found.get(key)
        if known is None or known[0] < end:
            found[key] = (end, mentioned if known is None else mentioned and known[1])
    return found


def _places(text: str) -> Iterator[tuple[str, int, int, bool]]:
    if len(text) < _LONG_WORD and text.isalnum() and text.isascii():
        return  # one plain word, as most strings of a schema are
    # 1. What the characters themselves give away.
    if not text.isascii() or text.encode().translate(None, _PRINTABLE):
        yield from _odd_characters(text)
    # 2. What the words say once the disguises are off.
    plain_text = plain(text)
    words = Words(plain_text.text)
    for code, start, end, mentioned in _phrases(text, plain_text, words.known):
        yield (code, *plain_text.original_span(start, end), mentioned)
    # 3. What markup keeps from a reader.
    if "<" in text:
        yield from (("hidden_characters", start, end, False) for start, end in find_unseen_text(text))
    if "://" in text:
        yield from (("exfiltration", start, end, False) for start, end in find_filled_urls(text))
    # 4. What is wrapped.
    if words.longest >= _LONG_WORD or not _is_flat(text) or _has_single_letters(Words(text)):
        yield from _payloads(text)
    if _is_turned(plain_text.text, words):
        yield "encoded_payload", 0, len(text), False


def _odd_characters(text: str) -> Iterator[tuple[str, int, int, bool]]:
    yield from (("terminal_escape", start, end, False) for start, end in hidden_text.find_terminal_escapes(text))
    if not text.isascii():
        yield from (("hidden_characters", start, end, False) for start, end in hidden_text.find_hidden_characters(text))
        yield from (("homoglyph", start, end, False) for start, end in hidden_text.find_look_alike_words(text))
        yield from _tag_text(text)
        yield from ((code, start, end, False) for code, start, end in in_other_scripts(text))


def _phrases(text: str, plain_text: PlainText, words: frozenset[bytes]) -> Iterator[tuple[str, int, int, bool]]:
    shown = plain_text.text
    for turn in _turns_for(words):
        for found in chain.from_iterable(compile_phrase(pattern).finditer(shown) for pattern in turn.patterns):
            start, end = found.span()
            if start and shown[start].isalnum() and shown[start - 1].isalnum():
                continue  # inside a word
            if turn.shouted and not _is_shouted(text, plain_text, found[0], start):
                continue
            if turn.negatable and _NEGATED.search(shown, max(0, start - 40), start):
                continue
            yield turn.code, start, end, _is_mentioned(shown, start)
    if _may_hold_theft(words):
        for code, start, end in theft.thefts(shown):
            yield code, start, end, _is_mentioned(shown, start, labels=False)
        for start, end in _secrets(shown):
            if not _NEGATED.search(shown, max(0, start - 40), start):
                yield "secret", start, end, False
    for found in _DESTINATION.finditer(shown) if _names_destination(shown) else ():
        yield "destination", found.start(), found.end(), False


def _secrets(shown: str) -> Iterator[tuple[int, int]]:
    for part in theft.secret_places(shown):
        yield part.start, part.end
    for found in compile_phrase(_NAMED_SECRET).finditer(shown):
        yield found.span()


def _turns_for(words: frozenset[bytes]) -> list[PhraseRule]:
    if words.isdisjoint(_TURN_GATES):
        return []
    numbers = {number for word in words & _TURN_GATES.keys() for number in _TURN_GATES[word]}
    return [
        PHRASE_RULES[number]
        for number in sorted(numbers)
        if not any(gate.isdisjoint(words) for gate in _FURTHER_GATES[number])
    ]


def _encoded(words: Iterable[str]) -> frozenset[bytes]:
    return frozenset(word.encode() for word in words)


def _turn_gates() -> dict[bytes, tuple[int, ...]]:
    gates: dict[bytes, list[int]] = {}
    for number, turn in enumerate(PHRASE_RULES):
        for word in turn.gates[0]:
            gates.setdefault(word.encode(), []).append(number)
    return {word: tuple(numbers) for word, numbers in gates.items()}


_TURN_GATES = _turn_gates()
_FURTHER_GATES = tuple(tuple(map(_encoded, turn.gates[1:])) for turn in PHRASE_RULES)
_THEFT_RARE = _encoded(theft.RARE_GATE)
_THEFT_PAIRED = tuple(tuple(map(_encoded, gates)) for gates in theft.PAIRED_GATES)
_THEFT_PAIRED_FIRST = frozenset[bytes]().union(*(gates[0] for gates in _THEFT_PAIRED))
_TURNED = _encoded(ROTATED_WORDS)
_GATES = frozenset().union(
    _TURN_GATES,
    _THEFT_RARE,
    _SINGLE_LETTERS,
    _TURNED,
    *(gate for gates in (*_FURTHER_GATES, *_THEFT_PAIRED) for gate in gates),
)

_NAMED_SECRET = (
    r"(?:all|any|every|the user's|users|plaintext|stored|saved|discovered|their) "
    rf"(?:\w{{1,16}} )?(?:{theft.PRIVATE_NAME})"
)
_DESTINATION = re.compile(
    r"\b(?:https?|wss?|s?ftp|ssh|tcp|udp|telnet|ldaps?|gopher|smtps?|mqtts?|mailto|git)://[^\s'\"`<>)\]}|]{3,200}"
    r"|(?<![\w.+\-])[\w.+\-]{1,64}@[a-z0-9][a-z0-9\-]{0,62}(?:\.[a-z0-9\-]{1,63}){0,4}\.[a-z]{2,24}\b"
    r"|(?<![\d.\w])(?:25[0-5]|2[0-4]\d|1?\d{1,2})(?:\.(?:25[0-5]|2[0-4]\d|1?\d{1,2})){3}(?!\.?\d|\w)"
    r"|\bwww\.[a-z0-9\-]{1,63}(?:\.[a-z0-9\-]{1,63}){1,4}|\b(?:[a-z0-9\-]{1,63}\.){2,5}(?:com|net|org|io|dev|app|site"
    r"|xyz|info|biz|ru|cn|tk|top|co|ai|cloud|online|link|live|onion|example|tld|de|uk|eu|us)\b(?!\.?[\w(])"
    r"|\b[a-z0-9\-]{1,63}\.(?:com|net|org|io|site|xyz|info|biz|ru|cn|tk|top|cloud|online|link|live|onion|example"
    r"|tld)(?::\d{2,5})?/[^\s'\"`<>)\]}|]{0,200}"
)


# A denial right before a phrase, with at most two words between.
_NEGATED = re.compile(
    r"\b(?:do not|don't|dont|never|not|no|without|cannot|can't|won't|doesn't|does not|must not|should not|avoid"
    r"|refuses? to|prevents?)[ ](?!hesitate|forget|fail|only|just|wait|stop|longer)(?:[\w']{1,16}[ ]){0,2}$"
)
_BEFORE = 160  # how far back the words that frame a phrase can stand
_SENTENCE_START = re.compile(r"[.!?][ ]")
_LABEL = re.compile(
    r"\b(?:sample|expected|mock(?:ed)?|canned|dummy|fake|test|fixture|illustrative|training|returned|placeholder|stub"
    r"|demo|simulated|recorded|golden|reference|example|harmless|known[ -]bad)[ ](?:\w{1,16}[ ]){0,2}(?:responses?"
    r"|outputs?|repl(?:y|ies)|texts?|strings?|payloads?|contents?|inputs?|values?|data|completions?|answers?|results?"
    r"|snippets?|transcripts?|attacks?|prompts?|phrases?|sentences?|cases?)[ ]?:[ ]?[\"'`]?(?:[^.!?]{0,80}\b(?:and"
    r"|then)[ ])?$"
)
_TALKS = (
    r"\b(?:detect|flag|identif|scan|check|analy[sz]|classif|report|explain|describ|document|illustrat|demonstrat|block"
    r"|filter|reject|catch|recogni[sz]|look|match|search|guard|warn|lint|audit|discuss|teach|stud|test|find|spot|monitor"
    r"|prevent|refus|sanitiz|validat|evaluat|review|count|highlight|quarantin|examin|inspect|score)"
    r"(?:e|es|s|y|ies|ed|ing|ion|or|er|ers|ation)?\b"
)
_QUOTED = re.compile(rf"{_TALKS}[^.!?]{{0,120}}[\"'`]$")
_REPORTED = re.compile(
    rf"{_TALKS}[^.!?]{{0,120}}?\b(?:that|which|when|whether|if|how|why|such as|like|attempts?|tr(?:y|ies)|asks?|tells?"
    r"|instructs?|saying|says?|containing|phrases?|strings?|patterns?)\b[^.!?;:]{0,60}$"
)
_COMMAND_AGAIN = re.compile(r"(?:\b(?:and|then|but|so|also|now|please|you must|must)|[,;:\-\u2014])[ ]?$")


def _is_mentioned(shown: str, start: int, *, labels: bool = True) -> bool:
    """Whether the words before a phrase make it a thing that is talked about."""
    lead = _SENTENCE_START.split(shown[max(0, start - _BEFORE) : start])[-1]
    if labels and _LABEL.search(lead):
        return True
    if _QUOTED.search(lead):
        return True
    return _REPORTED.search(lead) is not None and _COMMAND_AGAIN.search(lead) is None


def _is_shouted(text: str, plain_text: PlainText, phrase: str, start: int) -> bool:
    first, last = plain_text.original_span(start, start + len(phrase.split(maxsplit=1)[0]))
    return text[first:last].isupper()


def _payloads(text: str) -> Iterator[tuple[str, int, int, bool]]:
    for start, end, content in find_encoded_texts(text):
        if is_command(content) or _speaks(content):
            yield "encoded_payload", start, end, False
    for start, end, letters in spaced_letters(text):
        if _SPACED_OUT.search(letters):
            yield "encoded_payload", start, end, False


def _may_be_turned(lower: str, words: Words) -> bool:
    return not words.known.isdisjoint(_TURNED) or has_digits_for_letters(lower)


def _is_turned(shown: str, words: Words) -> bool:
    """Whether lower-case text contains an instruction after its letter rotation is undone."""
    if not words.known.isdisjoint(_TURNED) and any(map(_speaks, undo_rotations(shown))):
        return True
    return has_digits_for_letters(shown) and _gives_orders(with_letters_for_digits(shown), shown)


def _gives_orders(content: str, shown: str) -> bool:
    """Whether reading digits as letters reveals an attack."""
    before = {code for code, _, _, _ in _unwrapped(shown)}
    return any(code in ATTACK_CODES and code not in before for code, _, _, _ in _unwrapped(content))


def _speaks(content: str) -> bool:
    """Whether unwrapped text says anything but an address."""
    return any(code != "destination" for code, _, _, _ in _unwrapped(content))


def _unwrapped(content: str) -> Iterator[tuple[str, int, int, bool]]:
    """The phrases in unwrapped text; what is wrapped twice is not unwrapped again."""
    plain_text = plain(content)
    known = Words(plain_text.text).known
    return _phrases(content, plain_text, known)


# A phrase with a gap after every letter has lost its words' ends; these stems need none.
_SPACED_OUT = re.compile(
    r"ignore(?:all|any|the|prev|prior|above|your|system)|disregard|instruction|donottell|donttell|nevertell|secretly"
    r"|silently|password|credential|exfiltrat|systemprompt|apikey|idrsa"
)


def _tag_text(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Text written in tag characters says in the open what it would have said unseen."""
    for found in _TAGS.finditer(text):
        content = "".join(chr(ord(character) - 0xE0000) for character in found[0])
        for code, _, _, mentioned in _unwrapped(content):
            yield code, found.start(), found.end(), mentioned


_TAGS = re.compile("[\U000e0020-\U000e007e]{4,}")
