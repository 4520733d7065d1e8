"""How to speak of a configuration without telling its secrets.

Whatever of a command, address, variable or header is shown to people or written down goes through ``shown_*``. When in
doubt a value is masked: a diff that says only "changed" is useful, a diff with a password in it is a leak.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import unquote

from pinwarden.system.hosts import host_list, hosts_in, origin_only
from pinwarden.system.key_forms import TOKEN, has_secret_word, looks_random, names_secret, words_of
from pinwarden.system.plain_values import is_plain_value
from pinwarden.system.redirecting_variables import redirects
from pinwarden.system.unseen import NAMED_VALUES

MASK = "<secret>"
UNNAMED = "${?}"
"""What a lock holds of a reference that could as well be part of a secret, such as ``$NAME``."""

LONGEST_SHOWN = 4096
"""Longer text is not shown, nor searched for secrets in every way: nobody reads it, and searching takes its time."""

_REFERENCE = re.compile(
    r"(?:[A-Za-z][A-Za-z-]{0,15} )?"  # the scheme of an Authorization header
    r"(?:<[^<>\s]+>|\$\{[^{}]+\}|\$\{\{[^{}]+\}\}|\{(?:env|file):[^{}]+\}|\$[A-Z_][A-Z0-9_]*|%[A-Za-z_]\w*%|"
    r"(?:op|vault|doppler|keychain|aws-sm|gcp-sm|azure-kv|bw|pass|infisical)://\S+)"
)
_EXACT_REFERENCE = re.compile(
    r"(?:(?:Bearer|Basic|Token) )?"
    r"(?:\$\{(?:env:|input:)?[A-Za-z_][\w-]*(?::-)?\}|\{env:[A-Za-z_]\w*\}|\$\{\{ ?secrets\.[A-Za-z_]\w* ?\}\})"
)
"""What a lock may keep of a value: a name and nothing else, in a form that no password has by chance."""
_PLAIN_HEADER = re.compile(r"accept(?:-[a-z]+)?|content-type|user-agent|mcp-protocol-version", re.IGNORECASE)
_HEADER_OPTION = re.compile(r"-H|--?headers?", re.IGNORECASE)
_LONG_OPTION = re.compile(r"--[a-z][a-z-]*(?:=.*)?", re.DOTALL)
_PLAIN_WORD = re.compile(
    r"(?:true|false|yes|no|on|off|none|null|debug|info|warn|warning|error|trace|silent|stdio|http|sse|production|"
    r"development|staging|test|local|utf-?8|[a-z]{2}[_-][A-Z]{2}|[0-9]{1,5})",
    re.IGNORECASE,
)
_NO_SECRET = re.compile(
    r"none|true|false|on|off|(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][\w.-]{1,60}){1,12}\.(?:pem|key|crt|cer|p12|pfx|pub|json)"
)
"""What an option that is called like a secret may be given all the same: a switch, or the file that it is in."""
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*|[A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_HEADER = re.compile(r"((?:--?|/)?[A-Za-z][A-Za-z0-9-]*):\s*(\S.*)", re.DOTALL)
# Each begins where a word does, so that a long one is not searched from each of its letters.
_VALUE = r"(\"[^\"]*\"|'[^']*'|[^\s'\";&|]+)"
_IN_TEXT = (
    re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)(=|\s+)" + _VALUE),
    re.compile(r"(?<![\w.-])([\w.-]+)([\"']?(?:=|:\s*))" + _VALUE),
)
_PARTS = re.compile(r"[\s;&?{\"']")  # a command line, a connection string, a query, an object: names and values inside
_LOGIN = re.compile(
    r"(?<![^\s/@='\"])(:*[^\s/@:='\"]+):[^\s/@]+@(?=[A-Za-z0-9.-]+:[0-9]{1,5}(?:/|$))"
)  # user:password@host:port
_KNOWN_LOGIN = re.compile(
    r"(\bcurl\s[^|;&]*?(?<=\s)(?:-u|-U|--user|--proxy-user)[\s=]*[\"']?[^\s:\"']+:|\bsshpass\s+-p\s*|\bmysql(?:dump|admin)?\s[^|;&]*?(?<=\s)-p)"
    r"([^\s\"']+)"
)
"""Passwords that no name stands before, in command lines that everybody writes so."""
_SCHEME = re.compile(r"\b(Bearer|Basic|Token)(\s+)" + _VALUE, re.IGNORECASE)
_ADDRESS_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]+")
_RUN = re.compile(r"(sha(?:256|512):|[@#])?([A-Za-z0-9_+=-]{24,})")
_MOST_INSIDE = 8  # options inside the value of an option; nobody has more than two
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PATH = re.compile(r"(?:~|\.{1,2})?[/\\]|[A-Za-z]:[/\\]")


def is_reference(value: str) -> bool:
    """Whether a value only says where the real one is: a placeholder, a variable or a secret store."""
    return bool(_REFERENCE.fullmatch(value.strip()))


def is_exact_reference(value: str) -> bool:
    """Whether a value is nothing but the name of a variable, so that a lock may keep it."""
    return bool(_EXACT_REFERENCE.fullmatch(value))


def looks_secret(name: str, value: str) -> bool:
    """Whether a value, by its own form or by its name, is one that must not lie open."""
    if not value or is_reference(value) or _PLAIN_WORD.fullmatch(value):
        return False
    if len(value) > LONGEST_SHOWN:
        return True
    if TOKEN.search(value) or looks_random(value) or MASK in shown_address(value):
        return True
    return names_secret(name) and not _NO_SECRET.fullmatch(value)


def is_secret_name(name: str) -> bool:
    """Whether a name has the form of a key. Names are written down and printed as they are.

    Names have words in them: what has the prefix of a token must also hold a long run with a digit.
    """
    runs = [run for run in re.findall(r"[A-Za-z0-9]{16,}", name[:LONGEST_SHOWN]) if re.search(r"[0-9]", run)]
    return bool(runs) and (bool(TOKEN.search(name[:LONGEST_SHOWN])) or any(map(looks_random, runs)))


def shown_name(name: str) -> str:
    """A name for people."""
    return MASK if is_secret_name(name) else name


def names_in(entry: Any) -> Iterator[str]:
    """Every name in an entry, at any depth: of members, variables, headers and parameters of addresses."""
    waiting = [entry]
    while waiting:
        each = waiting.pop()
        if type(each) is dict:
            yield from each
            waiting += each.values()
        elif type(each) is list:
            waiting += each
    for url in addresses_of(entry):
        yield from (part.partition("=")[0] for part in url.partition("?")[2].split("&"))


def may_be_told(name: str, value: str) -> bool:
    """Whether a value is no secret by its kind: a plain word, a path, an address without a key, a usual header."""
    if looks_secret(name, value):
        return False
    usual = is_reference(value) or _PLAIN_WORD.fullmatch(value) or _PLAIN_HEADER.fullmatch(name)
    return bool(usual or _ADDRESS.match(value) or _PATH.match(value))


def shown_value(name: str, value: Any) -> Any:
    """The value of a variable or header for people: itself only where it cannot be a secret."""
    if type(value) is not str:
        return value if value is None or type(value) is bool else MASK
    if is_reference(value) or _PLAIN_WORD.fullmatch(value):
        return value
    if redirects(name):
        return shown_text(value)  # it has to be judged, and it is a path, an option or an address
    return MASK


def shown_kept(name: str, value: Any) -> Any:
    """The same with what a lock may keep of it, so that people see which host, path or variable is another one."""
    shown = shown_value(name, value)
    kept = _lockable_variable(name, value) if shown == MASK and type(value) is str else shown
    return shown if kept == f"<{name}>" else kept


def shown_words(words: Sequence[str]) -> list[str]:
    """Program and arguments for people, secrets masked."""
    shown: list[str] = []
    before = ""
    for word in words:
        follows = _names_secret(before) and not _LONG_OPTION.fullmatch(word)
        if len(word) > LONGEST_SHOWN:
            shown.append(shown_text(word))
        elif follows and not is_reference(word) and not _NO_SECRET.fullmatch(word):
            shown.append(MASK)
        elif _HEADER_OPTION.fullmatch(before):
            shown.append(_shown_header(word))
        else:
            shown.append(_shown_word(word))
        before = "" if follows else word  # the value of an option is not an option itself
    return shown


def _names_secret(word: str) -> bool:
    """Whether a word is an option whose value, in the next word, is a secret."""
    if len(word) > LONGEST_SHOWN or not word.startswith("-") or "=" in word:
        return False
    return names_secret(word.lstrip("-"))


def _shown_word(word: str, inside: int = 0) -> str:
    if inside > _MOST_INSIDE:
        return MASK
    option = _OPTION.fullmatch(word)
    header = _HEADER.fullmatch(word)
    if option and looks_secret(option[1].lstrip("-"), option[2]):
        return f"{option[1]}={MASK}"
    if option and _HEADER_OPTION.fullmatch(option[1]):
        return f"{option[1]}={_shown_header(option[2])}"
    if option and word.startswith("-") and _OPTION.fullmatch(option[2]):
        return f"{option[1]}={_shown_word(option[2], inside + 1)}"  # --env=NAME=value
    if header and not _ADDRESS.match(word) and looks_secret(header[1].lstrip("-/"), header[2]):
        return f"{header[1]}: {MASK}"
    return word if header and is_reference(header[2]) else shown_text(word)


def _shown_header(word: str) -> str:
    """A header that is an argument: what it is called says little about whether it is a key."""
    header = _HEADER.fullmatch(word)
    if header is None or _PLAIN_HEADER.fullmatch(header[1]):
        return _shown_word(word)
    return word if is_reference(header[2]) or _PLAIN_WORD.fullmatch(header[2]) else f"{header[1]}: {MASK}"


def shown_text(text: str) -> str:
    """One word or a line of shell for people, secrets masked."""
    if len(text) > LONGEST_SHOWN:
        return f"<{len(text)} characters>"
    if _ADDRESS.match(text) and not re.search(r"\s", text):
        return shown_address(text)
    if _PARTS.search(text):
        text = _ADDRESS_IN_TEXT.sub(lambda found: shown_address(found[0]), text)
        text = _SCHEME.sub(lambda found: found[0] if is_reference(found[3]) else f"{found[1]}{found[2]}{MASK}", text)
        for pattern in _IN_TEXT:
            text = pattern.sub(_masked_assignment, text)
        text = _KNOWN_LOGIN.sub(lambda found: found[0] if is_reference(found[2]) else f"{found[1]}{MASK}", text)
    return TOKEN.sub(MASK, _RUN.sub(_masked_run, _LOGIN.sub(rf"\1:{MASK}@", text)))


def _masked_assignment(found: re.Match[str]) -> str:
    name, between, value = found[1], found[2], found[3].strip("'\"")
    if between == ":" and value.startswith("//"):
        return found[0]  # the scheme of an address, which is masked already, and whose host has to be seen
    return f"{name}{between}{MASK}" if looks_secret(name.lstrip("-"), value) else found[0]


def _masked_run(found: re.Match[str]) -> str:
    """Digests and commits say what is run and are no secrets."""
    named = found[1] is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}|[0-9a-f]{128}", found[2])
    return found[0] if named or not looks_random(found[2]) else (found[1] or "") + MASK


def shown_address(url: str) -> str:
    """An address for people: no user name, no password, no query, and no path segment that looks like a key."""
    if len(url) > LONGEST_SHOWN:
        return f"<{len(url)} characters>"
    if not _ADDRESS.match(url):
        return url
    scheme, _, rest = url.partition("://")
    rest, hashed, _ = rest.partition("#")
    rest, query, _ = rest.partition("?")
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = f"{MASK}@{host.rpartition('@')[2]}"
    segments = [MASK if _holds_key(part) else part for part in path.split("/")]
    tail = (f"?{MASK}" if query else "") + (f"#{MASK}" if hashed else "")
    return f"{scheme}://{host}{slash}{'/'.join(segments)}{tail}"


def shown_item(entity: str, key: str) -> str:
    """What an event calls an item. An address of a resource may hold a password, or be all that it takes to read it."""
    return shown_address(key) if entity == "resource" and "://" in key else key


def _holds_key(segment: str) -> bool:
    """Whether a part of a path is a key, or has one behind a mark, as in ``bot1234:KEY``."""
    return bool(TOKEN.search(segment)) or _RUN.sub(_masked_run, segment) != segment


_URLS = ("url", "serverUrl", "httpUrl")
_KEPT = (
    *("command", "args", "cwd", "type", "name", "transport", "envFile"),
    *("env_vars", "env_http_headers", "bearer_token_env_var"),
    *("alwaysAllow", "autoApprove", "trust", "tools", "includeTools"),
    *("excludeTools", "enabled_tools", "disabled_tools", "disabledTools"),
)
"""Members that decide what runs, who is contacted or what passes unasked: a change of them has to be seen."""
_DECIDING = frozenset(
    (
        *("command", "args", "shell", "script", "run", "exec", "program", "entrypoint", "runtime", "interpreter"),
        *("image", "package", "module", "version", "path", "cwd", "registry", "source", "host", "proxy", "transport"),
        *("permissions", "allow", "deny", "allowed", "denied", "sandbox", "scopes", "roots", "mounts", "volumes"),
    )
)
"""Names of members, at any depth and of whichever client, that say what is started, from where, or what it may do."""
_RUNNING_WORDS = frozenset(
    ("command", "cmd", "script", "helper", "exec", "executable", "hook", "program", "shell", "run")
)
_LEADING_WORDS = frozenset(("url", "uri", "endpoint", "host", "issuer", "path", "file", "image", "package"))
"""The same as a part of a longer name: ``headersHelper``, ``setup_command``, ``authServerMetadataUrl``."""
_PLAIN_TEXT = re.compile(r"[\w./:@\\ -]{1,120}")
_CREDENTIALS = re.compile(r"(?<![^\s/@=]):*[^\s/@:=]+:[^\s/@]*@|^[^\s@/.~\\-][^\s]*@(?=[^\s@]*$)")


def lockable_entry(entry: Any) -> Any:
    """A configured entry as a lock may hold it: which values it has, and never what is in them.

    Two entries that differ only in secrets become the same, so this is also what a lock is compared with.
    """
    return {name: _lockable_member(name, value) for name, value in entry.items()} if type(entry) is dict else entry


def words_in_the_open(entry: Any) -> list[list[str]]:
    """Every command line and address of an entry, whichever of them its client uses: a lock holds them as they are."""
    if type(entry) is not dict:
        return []
    command = entry.get("command")
    parts = command if type(command) is dict else {"path": command}
    lists = [_listed(parts.get("path")) + _listed(parts.get("args")), _listed(entry.get("args"))]
    if type(command) is not dict:
        lists = [lists[0] + lists[1]]
    return [[word for word in words if type(word) is str] for words in (*lists, _listed(entry.get("cwd")))]


def addresses_of(entry: Any) -> list[str]:
    """Every address of an entry, whichever of them its client uses."""
    found = [entry.get(member) for member in _URLS] if type(entry) is dict else []
    return [url for url in found if type(url) is str]


def _listed(value: Any) -> list[Any]:
    return value if type(value) is list else [] if value is None else [value]


def _lockable_member(name: str, value: Any) -> Any:
    if name in _URLS and type(value) is str:
        return _lockable_address(name, value)
    if name == "command" and type(value) is dict:
        return {
            each: part
            if each in ("path", "args") and _is_text(part)
            else _lockable_value(f"command.{each}", each, part)
            for each, part in value.items()
        }
    if name == "env_http_headers" and type(value) is dict:
        return {each: _kept_word(each, part) for each, part in value.items()}
    if name in ("command", "args", "cwd") and _is_text(value):
        return value
    if name in _KEPT and _is_text(value):
        return [_kept_word(name, word) for word in value] if type(value) is list else _kept_word(name, value)
    return _lockable_value(name, name, value)


def _is_text(value: Any) -> bool:
    return type(value) is str or (type(value) is list and all(type(word) in (str, int, float, bool) for word in value))


def _kept_word(name: str, word: Any) -> Any:
    """The name of a tool, variable, file or kind; anything that has the form of a key is none."""
    return f"<{name}>" if type(word) is str and looks_secret("", word) else word


def _lockable_value(path: str, name: str, value: Any) -> Any:
    if type(value) is dict:
        if name in NAMED_VALUES:
            header = name.endswith("headers")  # what a header holds is a key more often than not
            return {each: _lockable_variable(each, part, header=header) for each, part in value.items()}
        return {each: _lockable_value(f"{path}.{each}", each, part) for each, part in value.items()}
    if type(value) is list:
        lockable = [_lockable_value(f"{path}.{place}", name, part) for place, part in enumerate(value)]
        if not all(type(part) is str for part in value):
            return lockable
        # One word may say what the next one is: --token, and then the token.
        pairs = zip(value, shown_words(value), lockable, strict=True)
        return [each if shown == part else f"<{path}.{place}>" for place, (part, shown, each) in enumerate(pairs)]
    if type(value) is str:
        return value if not value or is_exact_reference(value) else _deciding_text(path, name, value)
    number = type(value) in (int, float)
    return f"<{path}>" if number and looks_secret(name, f"{value}-") else value


def _deciding_text(path: str, name: str, text: str) -> str:
    """A literal of a member that decides what is started, from where, or with which rights; any other is left out."""
    words = words_of(name)
    if name.lower() not in _DECIDING and not words & (_RUNNING_WORDS | _LEADING_WORDS):
        return f"<{path}>"
    if words & _RUNNING_WORDS and not looks_secret(name, text) and shown_text(text) == text:
        return text  # a command line, as that of the server itself
    plain = _PLAIN_TEXT.fullmatch(text) and not looks_secret(name, text) and not _CREDENTIALS.search(text)
    if plain and shown_words([text]) == [text]:
        return text
    return origin_only(path, text) if _ADDRESS.match(text) and not re.search(r"\s", text) else f"<{path}>"


def _lockable_variable(name: str, value: Any, *, header: bool = False) -> Any:
    """A variable or header: a reference stays, of a literal what is no secret, by its form and by its name."""
    if value is None or type(value) is bool:
        return value
    if type(value) in (dict, list):
        return _lockable_value(name, name, value)
    text = str(value)
    if not text or is_exact_reference(text) or _SWITCH.fullmatch(text):
        return value
    secret_name = has_secret_word(name) and not name.upper().startswith("GIT_CONFIG_")
    if redirects(name) and not secret_name and not name.upper().endswith("HEADERS"):
        if "://" in text:
            return shown_text(text)
        several = text.startswith("-") and re.search(r"\s", text)  # the value of one option must not hide the others
        return (shown_text if several else _shown_word)(_CREDENTIALS.sub(f"<{name}>@", text))
    if _ADDRESS.match(text) and not re.search(r"\s", text):
        return _address_in_value(name, text)
    if _is_plain_path(name, text) or (not header and _is_plain(name, text)):
        return text
    return host_list(name, text) or _only_references(name, text)


def _address_in_value(name: str, url: str) -> str:
    """Whom an address leads to, which further ones are in it, and which variables are."""
    origin = origin_only(name, url)
    if origin == f"<{name}>":
        return _only_references(name, url)
    return " ".join((f"{origin}{_references(url)}", *list(hosts_in(url))[1:]))


def _is_plain(name: str, text: str) -> bool:
    return is_plain_value(name, text) and not looks_secret(name, text) and not _CREDENTIALS.search(text)


def _is_plain_path(name: str, text: str) -> bool:
    """Whether a value is a path by its name and by its form. Which file a server takes its settings from is no secret,
    and such a file often says what to start: a profile of a cloud, a cluster, a compiler."""
    plain = _SAYS_PATH.search(name) and _PLAIN_PATH.fullmatch(text) and not looks_secret(name, text)
    return bool(plain) and not _CREDENTIALS.search(text) and not any(map(_holds_key, re.split(r"[/\\]", text)))


_SAYS_PATH = re.compile(
    r"(?:^|_)(?:path|file|dir|dirs|directory|folder|home|root|config|conf|prefix|store|cache|bin|exe|executable|program|"
    r"command|shell|socket|cert|certs|bundle|profile|workspace|virtual_env|install)$|^[a-z]+config$",
    re.IGNORECASE,
)
_PLAIN_PATH = re.compile(
    r"(?=.{1,400}$)(?!.*:\s)(?:"
    r"(?:~[\w.-]*|\.{1,2}|[A-Za-z]:|\$\{[\w:./\\~-]+\}|\$[A-Z_]+|%\w+%)?[/\\][\w./\\:${}~ +@-]*|"
    r"\$\{[A-Za-z_]\w*:-[\w./\\~ +-]*[/\\][\w./\\~ +-]*\}|"
    r"[a-z0-9_.-]+(?:[/\\][a-z0-9_. -]+)+|[\w.-]+(?:[/\\][\w. -]+)*[/\\][\w. -]+\.[a-z]{2,5})"
)
"""One that begins like a path, or is made of words: of any other text with a slash in it some is a key, or a login."""
_SWITCH = re.compile(r"true|false|yes|no|on|off|enabled|disabled|0|1", re.IGNORECASE)
"""No secret has so little to say, and a server that was approved for reading must not begin to write unseen."""
_INSERTED = re.compile(
    r"\$\{(?:env:|input:)?[A-Za-z_][\w.-]*(?=:-[^{}]*\}|\})|\{env:[A-Za-z_]\w*\}|\$\{\{ ?secrets\.[A-Za-z_]\w* ?\}\}"
)
_PERHAPS_INSERTED = re.compile(r"\$\{|\{(?:env|file):|\$[A-Z_][A-Z0-9_]{2,}|^\s*\$[A-Za-z_]\w*\s*$|%[A-Za-z_]\w{2,}%")


def _only_references(name: str, text: str) -> str:
    """What a value refers to, with the literal text around it left out: ``user:${OTHER}`` is ``<USER>${OTHER}``.

    Which variables a server gets, and which hosts it is led to, has to be seen. Where a reference has a form that a
    password could have by chance only that there is one is said.
    """
    if len(text) > LONGEST_SHOWN:
        return f"<{name}>"
    return " ".join((f"<{name}>{_references(text)}", *hosts_in(text)))


def _references(text: str) -> str:
    """The variables that a text refers to; of what stands for one that is not set, only that there is something."""
    if len(text) > LONGEST_SHOWN:
        return ""
    named = "".join(map(_reference, _INSERTED.finditer(text)))
    return named + (UNNAMED if _PERHAPS_INSERTED.search(_INSERTED.sub(" ", text)) else "")


def _reference(found: re.Match[str]) -> str:
    if not found[0].startswith("${") or found[0].endswith("}"):
        return found[0]
    return f"{found[0]}:-}}" if found.string.startswith(":-", found.end()) else f"{found[0]}}}"


def _lockable_address(member: str, url: str) -> str:
    place, mark, query = url.partition("?")
    if not _ADDRESS.match(place) and not _begins_with_reference(place):
        return url if is_exact_reference(url) else _only_references(member, url)
    query = query.partition("#")[0]
    place = place.partition("#")[0]
    return f"{place}{mark}{'&'.join(_lockable_parameter(part) for part in query.split('&'))}" if query else place


def _begins_with_reference(place: str) -> bool:
    """Whether an address is a variable and a plain path below it: ``${BASE}/mcp``."""
    found = _EXACT_REFERENCE.match(place)
    rest = place[found.end() :] if found and len(place) <= LONGEST_SHOWN else " "
    plain = re.fullmatch(r"(?::[0-9]{1,5})?(?:/[\w.~-]*)*", rest)
    return bool(plain) and MASK not in shown_address(f"https://host{rest}")


def _lockable_parameter(text: str) -> str:
    name, mark, value = text.partition("=")
    if not mark:
        return text if is_exact_reference(text) or not text else "<query>"
    if not value or is_exact_reference(value) or _SWITCH.fullmatch(value):
        return text
    plain = unquote(value)
    whole = _ADDRESS.match(plain) and not re.search(r"\s", plain)
    return f"{name}={(_address_in_value if whole else _only_references)(name, plain).replace(' ', '+')}"
