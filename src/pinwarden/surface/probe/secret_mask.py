"""Keep secrets out of output and files, even if a server repeats them in its responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.surface.surface import Surface
from pinwarden.system.masking import is_safe_to_show

_MIN_SECRET = 4  # masking shorter values would make messages unreadable
_MIN_ECHOED = 8  # shorter values can occur in a response by chance
_MASK = "***"


class SecretMask:
    """Replaces secrets by ``***`` in error messages and in the output of servers."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # For the header "Bearer abc", mask both "Bearer abc" and "abc".
        parts = {part for secret in secrets for part in (secret, *secret.split()[1:])}
        self._secrets = sorted((part for part in parts if len(part) >= _MIN_SECRET), key=len, reverse=True)

    def mask_text(self, text: str) -> str:
        """Mask all secrets in a text."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    def mask_error(self, err: PinwardenError, details: Mapping[str, object]) -> PinwardenError:
        """Copy an error with additional details and with all secrets masked."""
        data = {name: self._mask_value(value) for name, value in {**err.data, **details}.items()}
        return PinwardenError(err.code, self.mask_text(err.message), hint=err.hint, data=data)

    def _mask_value(self, value: Any) -> Any:
        return self.mask_text(value) if isinstance(value, str) else value


def refuse_echoed_secrets(surface: Surface, sent_values: Iterable[tuple[str, str]]) -> None:
    """Raise SECRET_REPEATED if a surface contains a secret that was sent to the server.

    Otherwise Pinwarden would write the secret to the surface file. Only the exact value and its JSON-escaped form are
    found: a server can still repeat a secret in another encoding.
    """
    refuse_echoed_secrets_in([surface.server, [item.value for item in surface.all_items()]], sent_values)


def refuse_echoed_secrets_in(responses: Any, sent_values: Iterable[tuple[str, str]]) -> None:
    """Raise SECRET_REPEATED if a JSON value from a server contains a secret that was sent to that server."""
    secret_names = {
        part: name
        for name, value in sent_values
        if not is_safe_to_show(name, value)
        for part in (value, *value.split()[1:])
        if len(part) >= _MIN_ECHOED
    }
    if not secret_names:
        return
    encoded_names = {json.dumps(part)[1:-1]: name for part, name in secret_names.items()} | secret_names
    text = "\n".join(_walk_strings(responses))
    names = sorted({name for part, name in encoded_names.items() if part in text})
    if names:
        raise PinwardenError(
            "SECRET_REPEATED",
            f"the server's responses repeat a secret value that was sent to it: {', '.join(names)[:200]}",
            data={"names": names},
        )


def _walk_strings(value: Any) -> Iterator[str]:
    """Yield every string in a JSON value, including member names."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, Mapping):
            pending += [*current.keys(), *current.values()]
        elif isinstance(current, list | tuple):
            pending += current
