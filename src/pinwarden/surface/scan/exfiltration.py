"""Sentences that ask for data theft: a verb, something private, and a destination.

There are no fixed phrases. Each sentence is reduced to the roles of its words, and the order and distance of the roles
decide. This also detects paraphrases, and distinguishes ``include ~/.aws/credentials in the header`` from ``store the
key in ~/.aws/credentials``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from pinwarden.core.record import Record
from pinwarden.core.text import lazy_pattern
from pinwarden.surface.scan.hidden_text import compile_phrase, word_set

_URL = r"(?:https?|wss?|ftp)://[^\s'\"`<>)\]]{3,200}"
_EMAIL = r"[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,4}\b"
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)"
_HOST = r"(?:[a-z0-9\-]{1,63}\.){1,5}(?:com|net|org|io|dev|xyz|site|info|ru|cn|tk|top|example|tld)\b(?!\.\w)"

# Locations of secrets. Each pattern begins with a mark or a rare word, so that the regex engine can skip ahead.
_SECRET_PATHS = (
    r"\.(?:ssh|aws|gnupg|kube|docker|azure|netrc|npmrc|pypirc|git-credentials|pgpass|bash_history|zsh_history|cursor"
    r"|claude|codeium|config/gcloud)\b(?!\.\w{2,4}\b)[\w./\\\-]{0,80}",
    r"\.env\b(?:\.\w{1,16})?",
    r"/etc/(?:passwd|shadow|sudoers)\b",
    r"/proc/(?:self|\d{1,7})/environ\b",
    r"id_(?:rsa|ed25519|ecdsa|dsa)\b(?:\.pub)?",
    r"authorized_keys\b",
    r"mcp\.json\b",
    r"claude_desktop_config\b",
    r"wallet\.dat\b",
    r"keychain\b",
    r"credentials?[ ](?:files?|stores?)\b",
    r"plain ?text passwords?\b",
    r"169\.254\.169\.254(?:/[\w./\-]{0,120})?",
    r"metadata\.google\.internal(?:/[\w./\-]{0,120})?",
    r"computemetadata\b",
    r"metadata ip\b",
    r"file:///etc\b",
    r"gopher://",
)
_HOME = re.compile(r"(?:(?:~|/home/\w{1,32}|/root|\$\{?home\}?|%userprofile%)[/\\]|https?://)$")
PRIVATE_NAME = (
    r"(?:api|access|secret|auth|authentication|session|bearer|oauth|encryption|recovery|ssh|private|signing|gpg|github"
    r"|gitlab|openai|anthropic|slack|google|aws|azure|stripe|npm|database|db|admin|root|login)[ _\-]?(?:keys?|tokens?"
    r"|secrets?|codes?|passwords?|credentials?)\b|(?:passwords?|passphrases?|credentials?|secrets|seed phrases?"
    r"|tokens)\b|(?:aws|github|openai|anthropic|slack|google)_\w{0,24}(?:key|token|secret)\b"
)
_PRIVATE = (
    r"(?:environment variables?|(?:(?<=from[ ]the[ ])|(?<=in[ ]the[ ])|(?<=your[ ]))environment|env vars?"
    r"|process environment|cookies|localstorage|pii|browser history|clipboard|(?:conversation|chat|message"
    r"|prompt) (?:history|transcript|logs?|context)|conversations?|system prompts?|hidden system instructions"
    r"|everything (?:the )?(?:users?|they|you)|every (?:message|file|document|email)|(?:credit |debit "
    r"|bank )?cards?(?: numbers?)|credit cards?"
    r"|personal (?:data|information|details)|address book|contact list|phone numbers?|(?:last|previous|recent"
    r"|earlier) (?:\w{1,16} )?messages (?:of|in|from) "
    r"(?:this|the) (?:chat|conversation|session)|all (?:of )?(?:the |your |user )?(?:messages|emails|files|documents"
    r"|prompts|notes)|users?(?:'s?)? (?:\w{1,16} ){0,2}?(?:files?|data|input|history|messages?|emails?|documents?"
    r"|details|information|prompts?|queries|query|contacts|location))\b"
)
_OUTSIDE = (
    r"(?:external|remote|third party|3rd party|outside|off ?site|foreign|undisclosed|unlisted|our|my|different|separate"
    r"|hidden|partner) (?:\w{1,16} ){0,2}?(?:hosts?|servers?|endpoints?|urls?|address(?:es)?|services?|sites?|domains?"
    r"|webhooks?|mailbox|buckets?|apis?|accounts?|part(?:y|ies)|systems?|destinations?|inbox|channels?|machine|storage"
    r"|database|logger|proxy|relay|backend|listener|repository|drive)\b|third part(?:y|ies)\b"
    r"|(?:audit|analytics|telemetry|tracking|logging|monitoring|collection) (?:mailbox|endpoint|server|host|service"
    r"|webhook|inbox|address)\b"
)
_HOSTILE = r"\w{1,16}(?:'s)?(?:[ -]controlled)?(?:[ ]\w{1,16}){0,2}"

# The roles of single words. With a pattern, the word is only the beginning of the part.
_PLAIN_WORDS: dict[str, str] = {
    "theft": "exfil exfiltrate exfiltrates exfiltrating exfiltrated exfiltration siphon siphons siphoning smuggle "
    "smuggles smuggling",
    "send": "send sends sending post posts posting upload uploads uploading forward forwards forwarding transmit "
    "transmits transmitting relay relays relaying leak leaks leaking ship ships submit submits deliver delivers "
    "beacon beacons mirror mirrors email emails mail mails push pushes pipe pipes stream streams report reports copy "
    "copies cc bcc sync syncs transfer transfers share shares duplicate duplicates",
    "put": "include append attach embed insert pass paste log echo dump encode prepend stash inject put place "
    "concatenate including appending attaching embedding passing respond",
    "give": "return output print provide supply store save add write set keep fill display show",
    "take": "take takes read reads reading open opens opening cat load loads retrieve retrieves collect collects "
    "access accesses gather gathers harvest harvests extract extracts grab grabs obtain obtains steal steals fetch "
    "fetches request get scan probe query search locate find list try follow retry visit browse",
    "spot": "response responses result results outputs metadata header headers argument arguments parameter "
    "parameters param params field fields body requests sidenote sidenotes note notes context reply replies answer "
    "answers comment comments message messages url description logs footer footers trail",
    "given": "given configured specified provided requested selected supplied chosen designated",
    "own": "caller callers client clients local locally user users requester terminal screen displayed",
    "no": "don't never not no without cannot can't won't doesn't avoid prevent prevents preventing block blocks "
    "blocking refuse refuses reject rejects denies deny redact redacts mask masks strip strips remove removes protect "
    "protects against sanitize sanitizes",
    "extra": "also additionally instead silently secretly first then always before after furthermore automatically "
    "afterwards must whenever when covertly",
}
_OPENING_WORDS: tuple[tuple[str, str, str], ...] = (
    (
        "name",
        "api access secret auth authentication session bearer oauth encryption recovery ssh private signing gpg "
        "password passwords passphrase passphrases credential credentials secrets seed tokens aws github gitlab "
        "openai anthropic slack google azure stripe npm database db admin root login",
        PRIVATE_NAME,
    ),
    (
        "private",
        "environment env process cookies localstorage pii browser clipboard conversation conversations chat message "
        "prompt system hidden every everything credit personal all user user's users address contact phone "
        "debit bank card cards last previous recent earlier",
        _PRIVATE,
    ),
    ("hostile", "attacker attackers attacker's adversary adversary's malicious rogue evil", _HOSTILE),
    ("hostile", "collector", "collector"),
    ("hostile", "c2", r"c2\b"),
    (
        "bulk",
        "all every",
        r"(?:all|every) (?:of )?(?:the |your |user )?(?:inputs?|data|arguments?|requests?|outputs?)\b",
    ),
    (
        "outside",
        "external remote third 3rd outside off offsite foreign undisclosed unlisted our my different separate hidden "
        "partner audit analytics telemetry tracking logging monitoring collection",
        _OUTSIDE,
    ),
    ("outside", "http https ws wss ftp", _URL),
    (
        "extra",
        "every as a to for",
        r"every time\b|as well\b|a copy\b|to bypass\b|for (?:security|audit|debugging|compliance"
        r"|verification|logging)\b",
    ),
    ("no", "do does must should rather", r"(?:do|does|must|should) not\b|rather than\b"),
    ("put", "give hand", r"(?:give|hand) (?:it|us|me|over|this tool)\b"),
    ("self", "this", r"this (?:tool|server|function|endpoint)\b"),
    ("own", "local", r"local ui\b"),
    ("given", "your", r"your own\b"),
    ("spot", "audit side", r"audit trail\b|side notes?\b"),
    ("put", "begin start end finish answer reply", r"(?:begin|start|end|finish|answer|reply) with\b"),
    ("aside", "log", r"log (?:out|in|on|off|into)\b"),
    ("put", "fill", r"fill (?:this|it|that|these|the \w{1,16}|in)(?: in)? with\b"),
)

_PATH_GATE = word_set(
    "ssh aws gnupg kube netrc npmrc pypirc credential credentials pgpass gcloud env passwd shadow sudoers environ rsa "
    "ed25519 ecdsa dsa wallet keychain plaintext plain 169 computemetadata gopher azure codeium zsh bash docker "
    "cursor claude authorized mcp desktop metadata etc"
)
RARE_GATE = word_set(
    "ssh aws gnupg kube netrc npmrc pypirc credential credentials pgpass gcloud env passwd shadow sudoers environ rsa "
    "ed25519 ecdsa dsa wallet keychain password passwords passphrase passphrases plaintext 169 computemetadata gopher "
    "secret secrets cookies localstorage pii clipboard attacker attackers adversary malicious rogue evil collector c2 "
    "cc bcc exfil exfiltrate exfiltrates exfiltrating exfiltrated exfiltration siphon siphons siphoning smuggle "
    "smuggles smuggling azure codeium"
)
"""Words of which one is enough to check for theft."""
_CARRY = _PLAIN_WORDS["send"] + " " + _PLAIN_WORDS["put"] + " output print give hand begin start end finish answer fill"
PAIRED_GATES: tuple[tuple[frozenset[str], ...], ...] = tuple(
    tuple(map(word_set, gates))
    for gates in (
        (
            "key keys token tokens code codes",
            "api access auth authentication session bearer oauth encryption recovery private signing gpg github "
            "gitlab openai anthropic slack google stripe npm database db admin root login",
            _CARRY,
        ),
        ("environment conversation conversations chat transcript personal credit seed tokens", _CARRY),
        ("address contact phone card", "book list number numbers", _PLAIN_WORDS["send"]),
        ("messages", "chat conversation session", _CARRY),
        (
            "external remote third 3rd outside offsite off foreign undisclosed unlisted partner audit analytics "
            "telemetry tracking monitoring collection http https ftp ws wss our my different separate hidden",
            _PLAIN_WORDS["send"],
        ),
        (
            "user users",
            "s users everything typed",
            "data typed input history details information prompts queries contacts location",
            _CARRY,
        ),
        (
            "every all",
            "message messages email emails file files document documents prompts notes input inputs data arguments",
            _PLAIN_WORDS["send"],
        ),
        ("cursor claude docker authorized mcp", "json config keys desktop toml"),
        ("metadata", "google ip"),
        ("etc self gopher", "file proc root home"),
        ("system", "prompt prompts", _CARRY),
    )
)
"""Groups of word sets. A text without a word of ``RARE_GATE`` is checked if it has a word of each set of a group."""

_SENTENCE_END = re.compile(r"[.!?](?=[ ]|$)")
_BASE_TAKE = re.compile(
    r"(?:take|read|open|cat|load|retrieve|collect|access|gather|harvest|extract|grab|obtain|steal|fetch|request|get"
    r"|scan|probe|query|search|locate|find|list|try|follow|retry|visit|browse)$"
)
_LOCATION = re.compile(r"\b(?:to|into|in|inside|at|under|within|via)(?: (?:the|your|a|an|its))?[ `'\"]{1,3}$")
_SPOT_LEAD = re.compile(r"\b(?:into|as|in|via|through|to|inside|within)\b[^.!?]{0,40}$")
_ALL = re.compile(
    r"\b(?:all|any|every|each|entire|full|whole|complete|discovered|found|user's|users|their|current|hidden"
    r"|values? of|contents? of|users? (?:typed|entered|gave|has|have)|this (?:chat|conversation|session))\b"
)
_NEVER_SENT = lazy_pattern(r"(?:ssh |gpg )?private[ _-]?keys?\b|seed phrases?|recovery[ _-]?(?:keys?|codes?)")
_CONVERSATION = lazy_pattern(r"history|transcript|cookies|environment|system prompt|address book|clipboard")
_METADATA_SERVICE = re.compile(r"(?:https?://)?(?:169\.254|metadata)|gopher|file:///")
# A name in backticks that something is put into: a parameter of a call.
_ARGUMENT = lazy_pattern(r"\b(?:as|in|into|via|through|to|within|inside) (?:the |its |an? )?`$")
_IN_CODE = lazy_pattern(r"[\w\-]{1,40}`")
_LITERAL = re.compile(r"://|@|\w\.\w")
_PRONOUN = re.compile(r"\b(?:it|its|them|their|those|contents?)\b")
_STRONG_EXTRA = ("also", "additionally", "instead", "silently", "secretly", "covertly", "automatically", "a copy")
_URGING = re.compile(r"[ ](?:hesitate|forget|fail|only|just|wait|stop|longer)\b")  # "do not forget to" is no negation
# "contents of" and similar before a secret path: the description or name of a parameter for its content.
_ASKED_FOR = lazy_pattern(
    r"[\"'`(* ]{0,3}(?:(?:required|mandatory)[.:, ]{1,2})?(?:(?:the|full|entire|complete|raw|current|exact"
    r"|plain)[ _]){0,4}"
    r"(?:contents?|text|copy|dump|value)[ _]of[ _](?:(?:the|your|my|all|every|users?"
    r"|user's)[ _]){0,3}(?:[a-z0-9']{1,16}"
    r"[ _]){0,2}[`'\"]?$"
)
_NEAR = 130  # the maximum distance of related parts


class SentencePart(Record):
    """One or more words of a sentence with their role."""

    kind: str
    text: str
    start: int
    end: int


def find_thefts(text: str) -> Iterator[tuple[str, int, int]]:
    """Code, start and end of every part of plain ``text`` that asks to read or send private data."""
    paths = deque(find_secret_paths(text))
    if paths and paths[0].start < _NEAR and _ASKED_FOR.match(text[: paths[0].start]) and paths[0].text[:4] != ".env":
        yield "exfiltration", 0, paths[0].end
    after_secret = False  # whether the sentence before named a secret that "it" may refer to
    start = 0
    for end in [match.end() for match in _SENTENCE_END.finditer(text)] + [len(text)]:
        known: list[SentencePart] = []
        while paths and paths[0].start < end:
            known.append(paths.popleft())
        parts = _parse_sentence(text, start, end, known)
        if parts:
            yield from _check_sentence(text, start, parts, after_secret)
            after_secret = bool(known)
        start = end


def find_secret_paths(text: str) -> list[SentencePart]:
    """The paths of secrets that plain ``text`` names."""
    if _PATH_GATE.isdisjoint(_SIMPLE_WORD.findall(text)):
        return []
    spans = sorted(_find_secret_path_spans(text))
    paths: list[SentencePart] = []
    for start, end in spans:
        if not paths or paths[-1].end <= start:
            paths.append(SentencePart(kind="secret", text=text[start:end], start=start, end=end))
    return paths


def _find_secret_path_spans(text: str) -> Iterator[tuple[int, int]]:
    for expression in _SECRET_PATHS:
        for match in compile_phrase(expression).finditer(text):
            start, end = match.span()
            if start and (text[start - 1].isalnum() or text[start - 1] == "*"):
                continue  # inside a word, or a pattern of file names
            home = _HOME.search(text, max(0, start - 48), start)
            yield (home.start() if home else start), end


def _parse_sentence(text: str, start: int, end: int, parts: list[SentencePart]) -> list[SentencePart]:
    """Add the parts of one sentence to the known ones. Each word has one role; longer parts have precedence."""
    taken = {position for part in parts for position in range(part.start, part.end)}
    for token in _TOKEN.finditer(text, start, end):
        if token.start() in taken:
            continue
        part = _parse_part(text, token, end)
        if part is not None:
            parts.append(part)
            taken.update(range(part.start, part.end))
    return sorted(parts, key=lambda part: part.start)


def _parse_part(text: str, token: re.Match[str], end: int) -> SentencePart | None:
    word = token[0]
    for kind, expression in _OPENINGS.get(word, ()):
        match = compile_phrase(expression).match(text, token.start(), end)
        if match is not None:
            return SentencePart(kind=kind, text=match[0], start=match.start(), end=match.end())
    if word in _KINDS:
        return SentencePart(kind=_KINDS[word], text=word, start=token.start(), end=token.end())
    if _IN_CODE.match(text, token.start(), end) and _ARGUMENT.search(text, max(0, token.start() - 16), token.start()):
        return SentencePart(kind="spot", text=word, start=token.start(), end=token.end())
    if token.end() < end and text[token.end()] in "@.-+_":
        match = _ADDRESSES.match(text, token.start(), end)
        if match is not None:
            return SentencePart(kind="outside", text=match[0], start=match.start(), end=match.end())
    return None


def _index_openings() -> dict[str, tuple[tuple[str, str], ...]]:
    openings: dict[str, tuple[tuple[str, str], ...]] = {}
    for kind, words, expression in _OPENING_WORDS:
        for word in words.split():
            openings[word] = (*openings.get(word, ()), (kind, expression))
    return openings


_OPENINGS = _index_openings()
_KINDS = {word: kind for kind, words in _PLAIN_WORDS.items() for word in words.split()}
_SIMPLE_WORD = re.compile(r"[a-z0-9]+")
_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[^\W_]+")
_ADDRESSES = re.compile(rf"{_EMAIL}|{_ADDRESS}|{_HOST}")


def _check_sentence(
    text: str, start: int, parts: list[SentencePart], after_secret: bool
) -> Iterator[tuple[str, int, int]]:
    for index, part in enumerate(parts):
        if part.kind not in ("theft", "send", "put", "give", "take"):
            continue
        before, after = _select_nearby(parts, index)
        if _is_negated(text, start, part, before):
            continue
        if part.kind == "theft":
            yield "exfiltration", part.start, part.end
        elif part.kind == "send":
            yield from _find_sends(part, before, after)
        elif part.kind == "take":
            yield from _find_reads(text, start, part, before, after)
        if part.kind in ("send", "put", "give"):
            yield from _find_leaks(text, part, before, after, after_secret)


def _select_nearby(parts: list[SentencePart], index: int) -> tuple[list[SentencePart], list[SentencePart]]:
    """The parts before and after one that are near enough to be related."""
    first, last = index, index + 1
    while first > 0 and parts[index].start - parts[first - 1].start < _NEAR:
        first -= 1
    while last < len(parts) and parts[last].start - parts[index].end < _NEAR:
        last += 1
    return parts[first:index], parts[index + 1 : last]


def _find_sends(
    verb: SentencePart, before: list[SentencePart], after: list[SentencePart]
) -> Iterator[tuple[str, int, int]]:
    """Something is sent to an outside destination."""
    for target in after:
        if target.kind not in ("hostile", "outside", "self"):
            continue
        between = [part for part in after if part.start < target.start]
        if any(part.kind in ("given", "no") for part in between):
            continue
        sensitive = [
            part for part in before + between if part.kind in ("secret", "private") or _NEVER_SENT.match(part.text)
        ]
        if target.kind == "self":  # a tool may get what the user asks about, but not the complete conversation
            sensitive = [part for part in sensitive if part.kind == "secret" or _CONVERSATION.search(part.text)]
            if not sensitive:
                continue
        named = any(part.kind == "name" for part in before + between)
        is_emphasised = any(part.text in _STRONG_EXTRA for part in between) or any(
            part.text in _STRONG_EXTRA and verb.start - part.end <= 12 for part in before
        )
        is_urged = is_emphasised or any(part.kind in ("extra", "own") for part in before + after)
        blind_copy = verb.text in ("cc", "bcc") and "@" in target.text
        in_bulk = any(part.kind == "bulk" for part in between) and _LITERAL.search(target.text) is not None
        if target.kind == "hostile" or sensitive or is_emphasised or blind_copy or in_bulk or (named and is_urged):
            yield "exfiltration", verb.start, target.end
            return


def _find_reads(
    text: str, start: int, verb: SentencePart, before: list[SentencePart], after: list[SentencePart]
) -> Iterator[tuple[str, int, int]]:
    """A secret is read because the text orders it, or read into an argument."""
    secret = next((part for part in after if part.kind == "secret"), None)
    if secret is None:
        return
    spot = next((part for part in after if part.kind == "spot" and part.start > secret.end), None)
    is_moved = any(part.kind in ("send", "put", "give") for part in after)  # checked separately
    if (
        spot is not None
        and not is_moved
        and not _goes_to_requester(after)
        and _SPOT_LEAD.search(text, secret.end, spot.start)
    ):
        yield "exfiltration", verb.start, spot.end
        return
    if not _BASE_TAKE.match(verb.text):
        return
    opens_text = not text[:start].strip() and not before and not text[start : verb.start].strip(" \"'`*-")
    if not opens_text or _METADATA_SERVICE.match(secret.text):
        yield "agent_instruction", verb.start, secret.end


def _find_leaks(
    text: str, verb: SentencePart, before: list[SentencePart], after: list[SentencePart], after_secret: bool
) -> Iterator[tuple[str, int, int]]:
    """Something private is put into a response, a header or an argument."""
    if _goes_to_requester(after) and not any(part.kind in ("outside", "hostile") for part in after):
        return
    spot = next((part for part in after if part.kind == "spot"), None)
    was_read = any(part.kind == "take" for part in before)
    for sensitive in after:
        if sensitive.kind in ("secret", "private", "name") and _is_leaked(text, verb, sensitive, before, after):
            yield "exfiltration", verb.start, max(sensitive.end, spot.end if spot is not None else 0)
            return
    stolen = next((part for part in before if part.kind == "secret"), None)
    private = sum(part.kind in ("private", "name") for part in before)
    is_passed_on = was_read or _PRONOUN.match(text, min(verb.end + 1, len(text))) is not None
    if stolen is not None and is_passed_on and verb.kind in ("put", "send"):
        yield "exfiltration", stolen.start, spot.end if spot is not None else verb.end
    elif was_read and private >= 2 and (verb.kind == "put" or (verb.kind == "give" and spot is not None)):
        yield "exfiltration", before[0].start, verb.end
    elif after_secret and verb.kind == "put" and spot is not None and _PRONOUN.search(text, verb.end, spot.end):
        yield "exfiltration", verb.start, spot.end


def _is_leaked(
    text: str, verb: SentencePart, sensitive: SentencePart, before: list[SentencePart], after: list[SentencePart]
) -> bool:
    """Whether the object of ``verb`` is private, and the sentence urges to move it or names a destination."""
    if _LOCATION.search(text, verb.start, sensitive.start):
        return False
    spots = [part for part in after if part.kind == "spot"]
    if verb.kind == "give" and not any(part.start > sensitive.end for part in spots):
        return False
    is_given = verb.text.startswith(("give", "hand"))
    is_urged = is_given or bool(spots) or any(part.kind == "extra" for part in before + after)
    is_dumped = verb.text in ("dump", "echo", "log", "respond")
    if sensitive.kind == "secret":
        return is_urged or is_dumped or (verb.kind == "put" and any(part.kind == "take" for part in before))
    several = sum(part.kind in ("private", "name") for part in after) >= 2
    return is_urged and (_ALL.search(text, verb.start, sensitive.end + 30) is not None or (is_dumped and several))


def _goes_to_requester(after: list[SentencePart]) -> bool:
    """Whether the data goes back to the requester."""
    return any(
        part.kind == "own" and part.text.startswith(("caller", "client", "local", "requester")) for part in after
    )


def _is_negated(text: str, start: int, part: SentencePart, before: list[SentencePart]) -> bool:
    """Whether a negation is right before a part, with at most two words between them."""
    for other in reversed(before):
        if other.kind == "no":
            between = text[other.end : part.start]
            return start <= other.start and len(between) < 40 and between.count(" ") <= 3 and not _URGING.match(between)
    return False
