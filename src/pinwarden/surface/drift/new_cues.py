"""Which new sentences make a change critical.

A cue is a sign of an attack in a text. It counts if a new sentence takes part in it. The classifier of the scan also
judges each new sentence. A release with hundreds of new sentences has some that look odd by chance, but an attack is
often the only new sentence of a server. So the evidence that a sentence needs grows with the number of new sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import log
from typing import Any, NamedTuple

from pinwarden.core.json_values import iter_strings
from pinwarden.surface.drift.approved_text import (
    ApprovedServer,
    ApprovedText,
    extract_host,
    find_cues_cached,
    is_known_dialect,
)
from pinwarden.surface.drift.changes import ABSENT, CUE_ORDER
from pinwarden.surface.drift.text_signals import moves_data
from pinwarden.surface.scan.classifier import measure_steering
from pinwarden.surface.scan.cues import ATTACK_CODES, Cue
from pinwarden.surface.sentences import SplitSentence, split_sentences

_LONE_SENTENCE = -2.6  # the evidence that the only new sentence of a server needs
_MAX_EVIDENCE = 4.0  # the evidence that is enough in any number of new sentences
_SIGN = 2.5  # the evidence that a cue or another sign of an attack adds to that of its sentence
_MIN_SIGN = -1.0  # the evidence of a sign in any sentence
_PAIR = 1.5  # the evidence that two sentences need more than one, because longer text looks odd more often
_MAX_PAIR = 600  # characters of two sentences that are judged together
_BARE_ADDRESS = 0.0  # the evidence of a text that is only an address
# Hosts at which no one else receives data: reserved for documentation (RFC 2606), or this machine (RFC 6761).
_HARMLESS_HOST = re.compile(
    r"(?:^|\.)example\.(?:com|net|org)$|^(?:.+\.)?localhost$|^127(?:\.\d{1,3}){3}$|^0\.0\.0\.0$"
)
_PHRASE_CODES = frozenset({"concealment", "exfiltration", "agent_instruction", "impersonation", "steering", "secret"})
"""Codes of cues that a few words show. The whole sentence must support them."""
_ORDINARY_IN_NEW_ITEMS = frozenset(CUE_ORDER) - ATTACK_CODES


class Alarm(NamedTuple):
    """A critical kind of change, and the sentence or address that shows it; empty if no single one does."""

    kind: str
    sentence: str = ""


def is_suspicious(sentence: str, server: ApprovedServer, *, has_sign: bool = False) -> bool:
    """Whether a new sentence seems to steer the model. ``has_sign`` says that it shows another sign of an attack.

    The evidence is in log-odds, relative to what the scan needs for a warning. If it is not known how many sentences
    are new, any sign counts, as in the scan.
    """
    evidence = measure_steering(sentence)
    if evidence < 0 and " " not in sentence.strip():
        return False  # a bare name says too little for the lower bounds below
    if not has_sign:
        return is_enough_evidence(evidence, server)
    return server.count_new_sentences() is None or is_enough_evidence(max(evidence + _SIGN, _MIN_SIGN), server)


def is_enough_evidence(evidence: float, server: ApprovedServer) -> bool:
    """Whether evidence for an attack is enough, given how many sentences of the server are new."""
    if evidence < _LONE_SENTENCE:
        return False
    count = server.count_new_sentences()
    return evidence >= (0.0 if count is None else min(_LONE_SENTENCE + log(max(count, 1)), _MAX_EVIDENCE))


def find_new_alarms(
    texts: Iterable[str], approved: ApprovedText, ignored: frozenset[str] = frozenset(), *, skip_quoted: bool = False
) -> list[Alarm]:
    """Find the cues in ``texts`` in which a new sentence takes part, the most severe first, at most one per code.

    ``ignored`` are codes that do not count. With ``skip_quoted``, phrases that the text only quotes do not count.
    """
    alarms: dict[str, Alarm] = {}
    for text in dict.fromkeys(texts):
        for code, sentence in _find_codes(text, approved, skip_quoted=skip_quoted):
            if code not in ignored:
                alarms.setdefault(code, Alarm(f"new_{code}", sentence))
    return [alarms[code] for code in CUE_ORDER if code in alarms]


def find_steering_alarm(
    texts: Iterable[str], approved: ApprovedText, min_evidence: float = _LONE_SENTENCE
) -> list[Alarm]:
    """Find a new sentence that the classifier considers suspicious. It is the least specific alarm.

    An attack can be spread over sentences of which each looks harmless, so two in a row are also judged together.
    """
    for text in dict.fromkeys(texts):
        sentences = approved.find_new_sentences(text)
        for sentence in sentences:
            exact = text[sentence.start : sentence.end]
            if measure_steering(exact) < min_evidence:
                continue
            if is_suspicious(exact, approved.server) and not approved.is_approved_elsewhere(text, sentence):
                return [Alarm("new_steering", exact)]
        for first, second in pairwise(sentences):
            both = text[first.start : second.end]
            is_in_a_row = not text[first.end : second.start].strip() and len(both) <= _MAX_PAIR
            if not is_in_a_row or measure_steering(both) - _PAIR < min_evidence:
                continue
            is_known = all(approved.is_approved_elsewhere(text, part) for part in (first, second))
            if is_enough_evidence(measure_steering(both) - _PAIR, approved.server) and not is_known:
                return [Alarm("new_steering", both)]
    return []


def find_text_alarms(value: Any, approved: ApprovedText) -> list[Alarm]:
    """Find all alarms that new sentences of a value raise by themselves, the most severe first."""
    texts = list(iter_strings(value))
    return [*find_new_alarms(texts, approved), *find_steering_alarm(texts, approved)]


def find_item_alarms(value: Any, server: ApprovedServer | None = None) -> list[Alarm]:
    """Find the cues that make a new item critical, the most severe first.

    A new item needs review in any case, so the classifier must be as sure as the scan is. Many ordinary tools mention
    an address or a key; only an item with both is suspicious. A cue that is only quoted does not count.
    """
    approved, texts = ApprovedText(ABSENT, server), list(iter_strings(value))
    alarms = [*find_new_alarms(texts, approved, skip_quoted=True), *find_steering_alarm(texts, approved, 0.0)]
    codes = {alarm.kind.removeprefix("new_") for alarm in alarms}
    return [] if codes <= _ORDINARY_IN_NEW_ITEMS and codes != _ORDINARY_IN_NEW_ITEMS else alarms


def _find_codes(text: str, approved: ApprovedText, *, skip_quoted: bool) -> Iterator[tuple[str, str]]:
    """Yield the code of each cue that counts, and its sentence."""
    sentences = approved.find_new_sentences(text)
    for cue in find_cues_cached(text) if sentences else ():
        if cue.message is not None or (skip_quoted and cue.is_quoted):  # a message is the classifier's
            continue
        taking_part = [sentence for sentence in sentences if sentence.start < cue.end and cue.start < sentence.end]
        if _counts(cue, text, taking_part, approved):
            is_address = cue.code == "destination" or not taking_part
            yield cue.code, cue.excerpt if is_address else text[taking_part[0].start : taking_part[0].end]


def _counts(cue: Cue, text: str, taking_part: list[SplitSentence], approved: ApprovedText) -> bool:
    if cue.code == "destination":
        return _is_new_destination(cue, text, approved)
    if cue.code == "oversized_text":
        return True
    new = [part for part in taking_part if not approved.is_approved_elsewhere(text, part)]
    if cue.code not in _PHRASE_CODES:
        return bool(new)
    return any(is_suspicious(text[part.start : part.end], approved.server, has_sign=True) for part in new)


def _is_new_destination(cue: Cue, text: str, approved: ApprovedText) -> bool:
    """Whether an address has a new host and is more than a reference: its sentence moves data there."""
    host = extract_host(text[cue.start : cue.end])
    if is_known_dialect(text) or _HARMLESS_HOST.search(host) or not approved.is_new_host(host):
        return False
    for start, end, normalised in split_sentences(text):
        if start <= cue.start < end:
            if " " not in normalised:
                return is_enough_evidence(_BARE_ADDRESS, approved.server)
            is_destination = moves_data(text[start : cue.start], text[cue.end : end])
            return is_destination and is_suspicious(text[start:end], approved.server, has_sign=True)
    return True
