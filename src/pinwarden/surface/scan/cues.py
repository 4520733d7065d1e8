"""Find cues, that is, parts of model-visible text that look like an attack.

Rules search the plain form of a text, in which common disguises such as look-alike letters are undone. To be fast, the
text is first split into words, and a rule runs only if the text has a word that the rule needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain

from pinwarden.core.record import Record
from pinwarden.surface.scan import exfiltration, hidden_text
from pinwarden.surface.scan.classifier import find_steering, supports_phrase
from pinwarden.surface.scan.hidden_text import (
    ROTATED_WORDS,
    PhraseRule,
    PlainText,
    compile_phrase,
    extract_long_pieces,
    find_encoded_texts,
    find_hidden_markup,
    find_leaking_urls,
    find_spaced_letters,
    fold_text,
    has_command,
    has_digits_for_letters,
    replace_digits_by_letters,
    undo_rotations,
)
from pinwarden.surface.scan.other_languages import find_other_script_phrases
from pinwarden.surface.scan.phrase_rules import PHRASE_RULES

CUE_CODES = (
    "agent_instruction",
    "concealment",
    "exfiltration",
    "impersonation",
    "steering",
    "hidden_characters",
    "terminal_escape",
    "homoglyph",
    "encoded_payload",
    "oversized_text",
    "secret",
    "destination",
)
"""The codes of all kinds of cues."""

ATTACK_CODES = frozenset(CUE_CODES) - {"secret", "destination"}
"""The codes that are suspicious by themselves. Addresses and key files also occur in legitimate text."""

MAX_TEXT = 131_072
"""How many characters of a text are checked. The longest ``instructions`` of 8,235 live servers had 68,669."""

_MAX_EXCERPT = 120


class Cue(Record):
    """A suspicious part of a text. ``start`` and ``end`` are positions in the text as sent."""

    code: str
    start: int
    end: int
    excerpt: str
    """The suspicious text, shortened but not escaped. Callers must escape it for output."""
    is_quoted: bool = False
    """Whether the text seems only to quote the phrase, as the description of a security tool does."""
    message: str | None = None
    """For ``steering``: what the sentence tries to make the model do."""


def find_cues(text: str) -> tuple[Cue, ...]:
    """Find all cues in ``text``, sorted by position. There is at most one cue per code and position."""
    length = len(text)
    examined = text if length <= MAX_TEXT else text[:MAX_TEXT]
    matches = _find_longest_matches(examined)
    if length > MAX_TEXT:  # unchecked text is itself suspicious
        matches[("oversized_text", MAX_TEXT)] = (length, False)
    cues = [
        Cue(code=code, start=start, end=end, excerpt=text[start : min(end, start + _MAX_EXCERPT)], is_quoted=is_quoted)
        for (code, start), (end, is_quoted) in matches.items()
    ]
    cues += _find_steering_cues(examined, cues)
    return tuple(sorted(cues, key=lambda cue: (cue.start, cue.code)))


def _find_steering_cues(text: str, known: list[Cue]) -> list[Cue]:
    """Find sentences that steer the model. A sentence with a more specific cue is not reported again."""
    spans = [(cue.start, cue.end) for cue in known if cue.code in ATTACK_CODES]
    return [
        Cue(
            code="steering",
            start=sentence.start,
            end=sentence.end,
            excerpt=text[sentence.start : min(sentence.end, sentence.start + _MAX_EXCERPT)],
            message=sentence.message,
        )
        for sentence in find_steering(text)
        if not any(start < sentence.end and sentence.start < end for start, end in spans)
    ]


# Maps letters to lower case and keeps digits and + (for base64). All other characters become spaces, between words.
_TO_WORDS = bytes(
    ord(chr(byte).lower()) if chr(byte).isascii() and (chr(byte).isalnum() or byte == 0x2B) else 0x20
    for byte in range(256)
)
_PRINTABLE = bytes(range(0x20, 0x7F)) + b"\t\n"
_LONG_VOCABULARY = frozenset((b"additionalproperties",))  # the only schema keyword as long as an encoded command
_LONG_WORD = 18  # the length from which a word may be an encoded command
_MIN_CUE_LENGTH = 4  # the shortest cue is ".env"
_SINGLE_LETTERS = frozenset((b"o", b"r", b"l"))  # every phrase written with spaced letters has one of these letters
_HOST = re.compile(r"\.(?:\d{1,3}\.\d|(?i:com|net|org|io|xyz|onion|site|info|tld|example|ru|cn|tk|top)\b)")


class Words:
    """The words of a text, split once for all checks. Characters outside ASCII separate words."""

    __slots__ = ("known", "longest", "words")

    def __init__(self, text: str) -> None:
        words = text.encode("ascii", "replace").translate(_TO_WORDS).split()
        self.words = frozenset(words)
        self.known = _GATES & self.words
        """The words of the text that are in the gate of some rule."""
        self.longest = max(map(len, self.words - _LONG_VOCABULARY), default=0)

    def contain_any(self, candidates: frozenset[bytes]) -> bool:
        """Whether the text has one of these words."""
        return not self.words.isdisjoint(candidates)


def may_have_cues(texts: str, words: Words) -> bool:
    """Quickly check whether ``texts``, a string of texts separated by double quotes, could have a cue.

    If the result is False, there is no cue. If it is True, there may be one.
    """
    return _may_match_rule(texts, words) or any(map(find_steering, texts.split('"')))


def _may_match_rule(texts: str, words: Words) -> bool:
    if len(texts) > MAX_TEXT or not texts.isascii() or texts.encode().translate(None, _PRINTABLE):
        return True
    if _names_destination(texts) or ("<" in texts and any(find_hidden_markup(texts))):
        return True
    if words.longest >= _LONG_WORD and any(_find_payloads(extract_long_pieces(texts))):
        return True
    if (not _has_no_escapes(texts) or _may_have_spaced_letters(words)) and any(_find_payloads(texts)):
        return True
    rules = _select_rules(words.known)
    may_have_exfiltration = _may_have_exfiltration(words.known)
    lower = texts.lower()
    rotated = _may_hide_instruction(lower, words)
    if not rules and not may_have_exfiltration and not rotated:
        return False
    flat = " ".join(lower.split())
    if rotated and _hides_instruction(flat, words):
        return True
    plain_texts = [text for text in flat.split('"') if len(text) >= _MIN_CUE_LENGTH]
    return any(_matches_rule(plain_texts, rule, words) for rule in rules) or (
        may_have_exfiltration and _has_exfiltration(plain_texts, words)
    )


def _matches_rule(texts: list[str], rule: PhraseRule, words: Words) -> bool:
    gate = [word for word in rule.gates[0] if word.encode() in words.known]
    candidates = [text for text in texts if any(word in text for word in gate)]
    return any(compile_phrase(pattern).search(text) for pattern in rule.patterns for text in candidates)


def _has_exfiltration(texts: list[str], words: Words) -> bool:
    rare = [word.decode() for word in words.known & _EXFILTRATION_RARE]
    return any(
        (any(_find_secrets(text)) or any(exfiltration.find_exfiltration(text)))
        for text in texts
        if any(word in text for word in rare) or (" " in text and _may_have_exfiltration(Words(text).known))
    )


def _has_no_escapes(text: str) -> bool:
    """Whether text has no escapes of single characters, such as ``\\x41`` or ``&#65;``."""
    if "\\" in text and ("\\x" in text or "\\u" in text):
        return False
    return text.count("%") < 6 and not ("&" in text and "&#" in text)


def _may_have_spaced_letters(words: Words) -> bool:
    return not words.known.isdisjoint(_SINGLE_LETTERS)


def _names_destination(text: str) -> bool:
    return "://" in text or "@" in text or _HOST.search(text) is not None


def _may_have_exfiltration(words: frozenset[bytes]) -> bool:
    if not words.isdisjoint(_EXFILTRATION_RARE):
        return True
    if words.isdisjoint(_EXFILTRATION_PAIRED_FIRST):
        return False
    return any(not any(gate.isdisjoint(words) for gate in gates) for gates in _EXFILTRATION_PAIRED)


def _find_longest_matches(text: str) -> dict[tuple[str, int], tuple[int, bool]]:
    """Map the code and start of each match to the end of the longest one, and to whether it is only quoted."""
    matches: dict[tuple[str, int], tuple[int, bool]] = {}
    for code, start, end, is_quoted in _find_matches(text):
        key = (code, start)
        known = matches.get(key)
        if known is None or known[0] < end:
            matches[key] = (end, is_quoted if known is None else is_quoted and known[1])
    return matches


def _find_matches(text: str) -> Iterator[tuple[str, int, int, bool]]:
    if len(text) < _LONG_WORD and text.isalnum() and text.isascii():
        return  # a single plain word, as are most strings of a schema
    # 1. Suspicious characters.
    if not text.isascii() or text.encode().translate(None, _PRINTABLE):
        yield from _find_suspicious_characters(text)
    # 2. Phrases in the plain form.
    plain_text = fold_text(text)
    words = Words(plain_text.text)
    for code, start, end, is_quoted in _find_phrases(text, plain_text, words.known):
        yield (code, *plain_text.to_original_span(start, end), is_quoted)
    # 3. Text that markup hides from a reader.
    if "<" in text:
        yield from (("hidden_characters", start, end, False) for start, end in find_hidden_markup(text))
    if "://" in text:
        yield from (("exfiltration", start, end, False) for start, end in find_leaking_urls(text))
    # 4. Encoded text.
    if words.longest >= _LONG_WORD or not _has_no_escapes(text) or _may_have_spaced_letters(Words(text)):
        yield from _find_payloads(text)
    if _hides_instruction(plain_text.text, words):
        yield "encoded_payload", 0, len(text), False


def _find_suspicious_characters(text: str) -> Iterator[tuple[str, int, int, bool]]:
    yield from (("terminal_escape", start, end, False) for start, end in hidden_text.find_terminal_escapes(text))
    if not text.isascii():
        yield from (("hidden_characters", start, end, False) for start, end in hidden_text.find_hidden_characters(text))
        yield from (("homoglyph", start, end, False) for start, end in hidden_text.find_look_alike_words(text))
        yield from _find_tag_text(text)
        yield from ((code, start, end, False) for code, start, end in find_other_script_phrases(text))


def _find_phrases(text: str, plain_text: PlainText, words: frozenset[bytes]) -> Iterator[tuple[str, int, int, bool]]:
    plain_form = plain_text.text
    for rule in _select_rules(words):
        for match in chain.from_iterable(compile_phrase(pattern).finditer(plain_form) for pattern in rule.patterns):
            start, end = match.span()
            if start and plain_form[start].isalnum() and plain_form[start - 1].isalnum():
                continue  # the match begins inside a word
            if rule.shouted and not _is_shouted(text, plain_text, match[0], start):
                continue
            if rule.negatable and _NEGATED.search(plain_form, max(0, start - 40), start):
                continue
            if not rule.certain and not supports_phrase(text, *plain_text.to_original_span(start, end)):
                continue
            yield rule.code, start, end, _is_only_quoted(plain_form, start)
    if _may_have_exfiltration(words):
        names_secret = " " not in text or bool(exfiltration.find_secret_paths(plain_form))
        for code, start, end in exfiltration.find_exfiltration(plain_form):
            if not names_secret and not supports_phrase(text, *plain_text.to_original_span(start, end)):
                continue
            yield code, start, end, _is_only_quoted(plain_form, start, labels=False)
        for start, end in _find_secrets(plain_form):
            if not _NEGATED.search(plain_form, max(0, start - 40), start):
                yield "secret", start, end, False
    for match in _DESTINATION.finditer(plain_form) if _names_destination(plain_form) else ():
        yield "destination", match.start(), match.end(), False


def _find_secrets(plain_form: str) -> Iterator[tuple[int, int]]:
    for part in exfiltration.find_secret_paths(plain_form):
        yield part.start, part.end
    for match in compile_phrase(_NAMED_SECRET).finditer(plain_form):
        yield match.span()


def _select_rules(words: frozenset[bytes]) -> list[PhraseRule]:
    if words.isdisjoint(_RULE_GATES):
        return []
    indexes = {index for word in words & _RULE_GATES.keys() for index in _RULE_GATES[word]}
    return [
        PHRASE_RULES[index]
        for index in sorted(indexes)
        if not any(gate.isdisjoint(words) for gate in _FURTHER_GATES[index])
    ]


def _encode_words(words: Iterable[str]) -> frozenset[bytes]:
    return frozenset(word.encode() for word in words)


def _index_rule_gates() -> dict[bytes, tuple[int, ...]]:
    gates: dict[bytes, list[int]] = {}
    for index, rule in enumerate(PHRASE_RULES):
        for word in rule.gates[0]:
            gates.setdefault(word.encode(), []).append(index)
    return {word: tuple(indexes) for word, indexes in gates.items()}


_RULE_GATES = _index_rule_gates()
_FURTHER_GATES = tuple(tuple(map(_encode_words, rule.gates[1:])) for rule in PHRASE_RULES)
_EXFILTRATION_RARE = _encode_words(exfiltration.RARE_GATE)
_EXFILTRATION_PAIRED = tuple(tuple(map(_encode_words, gates)) for gates in exfiltration.PAIRED_GATES)
_EXFILTRATION_PAIRED_FIRST = frozenset[bytes]().union(*(gates[0] for gates in _EXFILTRATION_PAIRED))
_ROTATED = _encode_words(ROTATED_WORDS)
_GATES = frozenset().union(
    _RULE_GATES,
    _EXFILTRATION_RARE,
    _SINGLE_LETTERS,
    _ROTATED,
    *(gate for gates in (*_FURTHER_GATES, *_EXFILTRATION_PAIRED) for gate in gates),
)

_NAMED_SECRET = (
    r"(?:all|any|every|the user's|users|plaintext|stored|saved|discovered|their) "
    rf"(?:\w{{1,16}} )?(?:{exfiltration.PRIVATE_NAME})"
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


# A negation before a phrase, with at most two words between them.
_NEGATED = re.compile(
    r"\b(?:do not|don't|dont|never|not|no|without|cannot|can't|won't|doesn't|does not|must not|should not|avoid"
    r"|refuses? to|prevents?)[ ](?!hesitate|forget|fail|only|just|wait|stop|longer)(?:[\w']{1,16}[ ]){0,2}$"
)
_CONTEXT_LENGTH = 160  # characters before a phrase that may show that the text only quotes it
_SENTENCE_START = re.compile(r"[.!?][ ]")
_LABEL = re.compile(
    r"\b(?:sample|expected|mock(?:ed)?|canned|dummy|fake|test|fixture|illustrative|training|returned|placeholder|stub"
    r"|demo|simulated|recorded|golden|reference|example|harmless|known[ -]bad)[ ](?:\w{1,16}[ ]){0,2}(?:responses?"
    r"|outputs?|repl(?:y|ies)|texts?|strings?|payloads?|contents?|inputs?|values?|data|completions?|answers?|results?"
    r"|snippets?|transcripts?|attacks?|prompts?|phrases?|sentences?|cases?)[ ]?:[ ]?[\"'`]?(?:[^.!?]{0,80}\b(?:and"
    r"|then)[ ])?$"
)
_VERBS = (
    r"\b(?:detect|flag|identif|scan|check|analy[sz]|classif|report|explain|describ|document|illustrat|demonstrat|block"
    r"|filter|reject|catch|recogni[sz]|look|match|search|guard|warn|lint|audit|discuss|teach|stud|test|find|spot|monitor"
    r"|prevent|refus|sanitiz|validat|evaluat|review|count|highlight|quarantin|examin|inspect|score)"
    r"(?:e|es|s|y|ies|ed|ing|ion|or|er|ers|ation)?\b"
)
_QUOTED = re.compile(rf"{_VERBS}[^.!?]{{0,120}}[\"'`]$")
_REPORTED = re.compile(
    rf"{_VERBS}[^.!?]{{0,120}}?\b(?:that|which|when|whether|if|how|why|such as|like|attempts?|tr(?:y|ies)|asks?|tells?"
    r"|instructs?|saying|says?|containing|phrases?|strings?|patterns?)\b[^.!?;:]{0,60}$"
)
_COMMAND_AGAIN = re.compile(r"(?:\b(?:and|then|but|so|also|now|please|you must|must)|[,;:\-\u2014])[ ]?$")


def _is_only_quoted(plain_form: str, start: int, *, labels: bool = True) -> bool:
    """Whether the words before a phrase show that the text only quotes it."""
    lead = _SENTENCE_START.split(plain_form[max(0, start - _CONTEXT_LENGTH) : start])[-1]
    if labels and _LABEL.search(lead):
        return True
    if _QUOTED.search(lead):
        return True
    return _REPORTED.search(lead) is not None and _COMMAND_AGAIN.search(lead) is None


def _is_shouted(text: str, plain_text: PlainText, phrase: str, start: int) -> bool:
    first, last = plain_text.to_original_span(start, start + len(phrase.split(maxsplit=1)[0]))
    return text[first:last].isupper() and text[max(0, first - 1) : first] != "_"  # no part of OPERATING_SYSTEM


def _find_payloads(text: str) -> Iterator[tuple[str, int, int, bool]]:
    for start, end, content in find_encoded_texts(text):
        if has_command(content) or _has_phrase(content):
            yield "encoded_payload", start, end, False
    for start, end, letters in find_spaced_letters(text):
        if _SPACED_OUT.search(letters):
            yield "encoded_payload", start, end, False


def _may_hide_instruction(lower: str, words: Words) -> bool:
    return not words.known.isdisjoint(_ROTATED) or has_digits_for_letters(lower)


def _hides_instruction(plain_form: str, words: Words) -> bool:
    """Whether lower-case text has an instruction in ROT13, reversed, or with digits for letters."""
    if not words.known.isdisjoint(_ROTATED) and any(map(_has_phrase, undo_rotations(plain_form))):
        return True
    return has_digits_for_letters(plain_form) and _reveals_attack(replace_digits_by_letters(plain_form), plain_form)


def _reveals_attack(content: str, plain_form: str) -> bool:
    """Whether ``content`` (the text with digits replaced by letters) has an attack that ``plain_form`` does not."""
    before = {code for code, _, _, _ in _find_decoded_phrases(plain_form)}
    return any(code in ATTACK_CODES and code not in before for code, _, _, _ in _find_decoded_phrases(content))


def _has_phrase(content: str) -> bool:
    """Whether decoded text has any cue other than an address."""
    return any(code != "destination" for code, _, _, _ in _find_decoded_phrases(content))


def _find_decoded_phrases(content: str) -> Iterator[tuple[str, int, int, bool]]:
    """Find phrases in decoded text. Encoded text inside it is not decoded again."""
    plain_text = fold_text(content)
    known = Words(plain_text.text).known
    return _find_phrases(content, plain_text, known)


# Phrases that were written with spaces between letters. Their words have no boundaries, so these patterns need none.
_SPACED_OUT = re.compile(
    r"ignore(?:all|any|the|prev|prior|above|your|system)|disregard|instruction|donottell|donttell|nevertell|secretly"
    r"|silently|password|credential|exfiltrat|systemprompt|apikey|idrsa"
)


def _find_tag_text(text: str) -> Iterator[tuple[str, int, int, bool]]:
    """Find phrases in text that is written in invisible Unicode tag characters."""
    for match in _TAGS.finditer(text):
        content = "".join(chr(ord(character) - 0xE0000) for character in match[0])
        for code, _, _, is_quoted in _find_decoded_phrases(content):
            yield code, match.start(), match.end(), is_quoted


_TAGS = re.compile("[\U000e0020-\U000e007e]{4,}")
