"""Find sentences that ask an agent to send private data elsewhere.

Each word of a sentence gets a role, such as a verb of sending, something private, or a destination. The order and
distance of the roles show whether the sentence asks for exfiltration. Unlike fixed phrases, this also finds
paraphrases, and distinguishes ``include ~/.aws/credentials in the header`` from ``store the key in
~/.aws/credentials``.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from pinwarden.core.record import Record
from pinwarden.core.text import lazy_pattern
from pinwarden.surface.scan.hidden_text import compile_phrase, parse_words

_URL = r"(?:https?|wss?|ftp)://[^\s'\"`<>)\]]{3,200}"
_EMAIL = r"[\w.+\-]{1,64}@[\w\-]{1,63}(?:\.[\w\-]{1,63}){1,4}\b"
_ADDRESS = r"\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)"
_HOST = r"(?:[a-z0-9\-]{1,63}\.){1,5}(?:com|net|org|io|dev|xyz|site|info|ru|cn|tk|top|example|tld)\b(?!\.\w)"

# Locations of secrets. Each pattern begins with a rare character or word, so that the regex engine can skip ahead.
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

# Roles that single words always have. The words of `_OPENING_WORDS` have a role only with the words after them.
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

_PATH_GATE = parse_words(
    "ssh aws gnupg kube netrc npmrc pypirc credential credentials pgpass gcloud env passwd shadow sudoers environ rsa "
    "ed25519 ecdsa dsa wallet keychain plaintext plain 169 computemetadata gopher azure codeium zsh bash docker "
    "cursor claude authorized mcp desktop metadata etc"
)
RARE_GATE = parse_words(
    "ssh aws gnupg kube netrc npmrc pypirc credential credentials pgpass gcloud env passwd shadow sudoers environ rsa "
    "ed25519 ecdsa dsa wallet keychain password passwords passphrase passphrases plaintext 169 computemetadata gopher "
    "secret secrets cookies localstorage pii clipboard attacker attackers adversary malicious rogue evil collector c2 "
    "cc bcc exfil exfiltrate exfiltrates exfiltrating exfiltrated exfiltration siphon siphons siphoning smuggle "
    "smuggles smuggling azure codeium"
)
"""Rare words. A text with one of them is checked for exfiltration."""
_CARRY = _PLAIN_WORDS["send"] + " " + _PLAIN_WORDS["put"] + " output print give hand begin start end finish answer fill"
PAIRED_GATES: tuple[tuple[frozenset[str], ...], ...] = tuple(
    tuple(map(parse_words, gates))
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
"""Groups of word sets. A text is also checked for exfiltration if it has a word from every set of one group."""

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
# A preposition before a name in backticks, which is a parameter of a call: "put it into `notes`".
_ARGUMENT = lazy_pattern(r"\b(?:as|in|into|via|through|to|within|inside) (?:the |its |an? )?`$")
_IN_CODE = lazy_pattern(r"[\w\-]{1,40}`")
_LITERAL = re.compile(r"://|@|\w\.\w")
_PRONOUN = re.compile(r"\b(?:it|its|them|their|those|contents?)\b")
_STRONG_EXTRA = ("also", "additionally", "instead", "silently", "secretly", "covertly", "automatically", "a copy")
_URGING = re.compile(r"[ ](?:hesitate|forget|fail|only|just|wait|stop|longer)\b")  # "do not forget to" negates nothing
# Words such as "contents of" before the path of a secret, in the description of a parameter that asks for its content.
_ASKED_FOR = lazy_pattern(
    r"[\"'`(* ]{0,3}(?:(?:required|mandatory)[.:, ]{1,2})?(?:(?:the|full|entire|complete|raw|current|exact"
    r"|plain)[ _]){0,4}"
    r"(?:contents?|text|copy|dump|value)[ _]of[ _](?:(?:the|your|my|all|every|users?"
    r"|user's)[ _]){0,3}(?:[a-z0-9']{1,16}"
    r"[ _]){0,2}[`'\"]?$"
)
_NEAR = 130  # the maximum number of characters between related parts of a sentence


class SentencePart(Record):
    """One or more words of a sentence, with their role."""

    role: str
    text: str
    start: int
    end: int


def find_exfiltration(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield the code, start and end of every passage that asks to read or send private data.

    ``text`` is in plain form.
    """
    paths = deque(find_secret_paths(text))
    if paths and paths[0].start < _NEAR and _ASKED_FOR.match(text[: paths[0].start]) and paths[0].text[:4] != ".env":
        yield "exfiltration", 0, paths[0].end
    after_secret = False  # whether the previous sentence named a secret, so that "it" may refer to the secret
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
    """Find file paths that lead to secrets. ``text`` is the plain form, with disguises undone (see `cues.py`)."""
    if _PATH_GATE.isdisjoint(_SIMPLE_WORD.findall(text)):
        return []
    spans = sorted(_find_secret_path_spans(text))
    paths: list[SentencePart] = []
    for start, end in spans:
        if not paths or paths[-1].end <= start:
            paths.append(SentencePart(role="secret", text=text[start:end], start=start, end=end))
    return paths


def _find_secret_path_spans(text: str) -> Iterator[tuple[int, int]]:
    for expression in _SECRET_PATHS:
        for match in compile_phrase(expression).finditer(text):
            start, end = match.span()
            if start and (text[start - 1].isalnum() or text[start - 1] == "*"):
                continue  # the match is inside a word, or in a pattern of file names such as *.env
            home = _HOME.search(text, max(0, start - 48), start)
            yield (home.start() if home else start), end


def _parse_sentence(text: str, start: int, end: int, parts: list[SentencePart]) -> list[SentencePart]:
    """Find the parts of one sentence and add them to ``parts``. A word belongs to at most one part."""
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
    for role, expression in _OPENINGS.get(word, ()):
        match = compile_phrase(expression).match(text, token.start(), end)
        if match is not None:
            return SentencePart(role=role, text=match[0], start=match.start(), end=match.end())
    if word in _WORD_ROLES:
        return SentencePart(role=_WORD_ROLES[word], text=word, start=token.start(), end=token.end())
    if _IN_CODE.match(text, token.start(), end) and _ARGUMENT.search(text, max(0, token.start() - 16), token.start()):
        return SentencePart(role="spot", text=word, start=token.start(), end=token.end())
    if token.end() < end and text[token.end()] in "@.-+_":
        match = _ADDRESSES.match(text, token.start(), end)
        if match is not None:
            return SentencePart(role="outside", text=match[0], start=match.start(), end=match.end())
    return None


def _index_openings() -> dict[str, tuple[tuple[str, str], ...]]:
    openings: dict[str, tuple[tuple[str, str], ...]] = {}
    for role, words, expression in _OPENING_WORDS:
        for word in words.split():
            openings[word] = (*openings.get(word, ()), (role, expression))
    return openings


_OPENINGS = _index_openings()
_WORD_ROLES = {word: role for role, words in _PLAIN_WORDS.items() for word in words.split()}
_SIMPLE_WORD = re.compile(r"[a-z0-9]+")
_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[^\W_]+")
_ADDRESSES = re.compile(rf"{_EMAIL}|{_ADDRESS}|{_HOST}")


def _check_sentence(
    text: str, start: int, parts: list[SentencePart], after_secret: bool
) -> Iterator[tuple[str, int, int]]:
    for index, part in enumerate(parts):
        if part.role not in ("theft", "send", "put", "give", "take"):
            continue
        before, after = _select_nearby(parts, index)
        if _is_negated(text, start, part, before):
            continue
        if part.role == "theft":
            yield "exfiltration", part.start, part.end
        elif part.role == "send":
            yield from _find_send_requests(part, before, after)
        elif part.role == "take":
            yield from _find_read_requests(text, start, part, before, after)
        if part.role in ("send", "put", "give"):
            yield from _find_leak_requests(text, part, before, after, after_secret)


def _select_nearby(parts: list[SentencePart], index: int) -> tuple[list[SentencePart], list[SentencePart]]:
    """Return the parts before and after the part at ``index`` that are near enough to be related to it."""
    first, last = index, index + 1
    while first > 0 and parts[index].start - parts[first - 1].start < _NEAR:
        first -= 1
    while last < len(parts) and parts[last].start - parts[index].end < _NEAR:
        last += 1
    return parts[first:index], parts[index + 1 : last]


def _find_send_requests(
    verb: SentencePart, before: list[SentencePart], after: list[SentencePart]
) -> Iterator[tuple[str, int, int]]:
    """Find a request to send something to an outside destination."""
    for target in after:
        if target.role not in ("hostile", "outside", "self"):
            continue
        between = [part for part in after if part.start < target.start]
        if any(part.role in ("given", "no") for part in between):
            continue
        sensitive = [
            part for part in before + between if part.role in ("secret", "private") or _NEVER_SENT.match(part.text)
        ]
        if target.role == "self":  # a tool may receive the user's question, but not the whole conversation or a secret
            sensitive = [part for part in sensitive if part.role == "secret" or _CONVERSATION.search(part.text)]
            if not sensitive:
                continue
        named = any(part.role == "name" for part in before + between)
        is_emphasised = any(part.text in _STRONG_EXTRA for part in between) or any(
            part.text in _STRONG_EXTRA and verb.start - part.end <= 12 for part in before
        )
        is_urged = is_emphasised or any(part.role in ("extra", "own") for part in before + after)
        blind_copy = verb.text in ("cc", "bcc") and "@" in target.text
        in_bulk = any(part.role == "bulk" for part in between) and _LITERAL.search(target.text) is not None
        if target.role == "hostile" or sensitive or is_emphasised or blind_copy or in_bulk or (named and is_urged):
            yield "exfiltration", verb.start, target.end
            return


def _find_read_requests(
    text: str, start: int, verb: SentencePart, before: list[SentencePart], after: list[SentencePart]
) -> Iterator[tuple[str, int, int]]:
    """Find an order to read a secret, or to read one into an argument of a call."""
    secret = next((part for part in after if part.role == "secret"), None)
    if secret is None:
        return
    spot = next((part for part in after if part.role == "spot" and part.start > secret.end), None)
    is_moved = any(part.role in ("send", "put", "give") for part in after)  # `_find_leak_requests` checks these verbs
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


def _find_leak_requests(
    text: str, verb: SentencePart, before: list[SentencePart], after: list[SentencePart], after_secret: bool
) -> Iterator[tuple[str, int, int]]:
    """Find a request to put something private into a response, a header or an argument."""
    if _goes_to_requester(after) and not any(part.role in ("outside", "hostile") for part in after):
        return
    spot = next((part for part in after if part.role == "spot"), None)
    was_read = any(part.role == "take" for part in before)
    for sensitive in after:
        if sensitive.role in ("secret", "private", "name") and _is_leaked(text, verb, sensitive, before, after):
            yield "exfiltration", verb.start, max(sensitive.end, spot.end if spot is not None else 0)
            return
    stolen = next((part for part in before if part.role == "secret"), None)
    private = sum(part.role in ("private", "name") for part in before)
    is_passed_on = was_read or _PRONOUN.match(text, min(verb.end + 1, len(text))) is not None
    if stolen is not None and is_passed_on and verb.role in ("put", "send"):
        yield "exfiltration", stolen.start, spot.end if spot is not None else verb.end
    elif was_read and private >= 2 and (verb.role == "put" or (verb.role == "give" and spot is not None)):
        yield "exfiltration", before[0].start, verb.end
    elif after_secret and verb.role == "put" and spot is not None and _PRONOUN.search(text, verb.end, spot.end):
        yield "exfiltration", verb.start, spot.end


def _is_leaked(
    text: str, verb: SentencePart, sensitive_part: SentencePart, before: list[SentencePart], after: list[SentencePart]
) -> bool:
    """Whether the sentence urges an agent to move ``sensitive_part``, the object of ``verb``, or names a host."""
    if _LOCATION.search(text, verb.start, sensitive_part.start):
        return False
    destinations = [part for part in after if part.role == "spot"]
    if verb.role == "give" and not any(part.start > sensitive_part.end for part in destinations):
        return False
    is_given = verb.text.startswith(("give", "hand"))
    is_urged = is_given or bool(destinations) or any(part.role == "extra" for part in before + after)
    is_dumped = verb.text in ("dump", "echo", "log", "respond")
    if sensitive_part.role == "secret":
        return is_urged or is_dumped or (verb.role == "put" and any(part.role == "take" for part in before))
    is_about_several = sum(part.role in ("private", "name") for part in after) >= 2
    return is_urged and (
        _ALL.search(text, verb.start, sensitive_part.end + 30) is not None or (is_dumped and is_about_several)
    )


def _goes_to_requester(after: list[SentencePart]) -> bool:
    """Whether the data goes only to the caller or stays on this machine."""
    return any(
        part.role == "own" and part.text.startswith(("caller", "client", "local", "requester")) for part in after
    )


def _is_negated(text: str, start: int, part: SentencePart, before: list[SentencePart]) -> bool:
    """Whether there is a negation before the part, with at most two words between them."""
    for other in reversed(before):
        if other.role == "no":
            between = text[other.end : part.start]
            return start <= other.start and len(between) < 40 and between.count(" ") <= 3 and not _URGING.match(between)
    return False
