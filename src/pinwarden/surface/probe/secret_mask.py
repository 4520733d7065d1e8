"""Keep secrets out of output and files, even if a server echoes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError
from pinwarden.surface.surface import Surface
from pinwarden.system.masking import is_safe_to_show

_MIN_SECRET = 4  # shorter values are not secrets, and masking them would make text unreadable
_MIN_ECHOED = 8  # shorter values occur by chance
_MASK = "***"


class SecretMask:
    """Masks the secrets of one probe in text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # Both "Bearer abc" and "abc" are secrets.
        parts = {part for secret in secrets for part in (secret, *secret.split()[1:])}
        self._secrets = sorted((part for part in parts if len(part) >= _MIN_SECRET), key=len, reverse=True)

    def mask_text(self, text: str) -> str:
        """The text with all secrets masked."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    def mask_error(self, err: PinwardenError, details: Mapping[str, object]) -> PinwardenError:
        """The error with more details, and with all secrets masked."""
        data = {name: self._mask_value(value) for name, value in {**err.data, **details}.items()}
        return PinwardenError(err.code, self.mask_text(err.message), hint=err.hint, data=data)

    def _mask_value(self, value: Any) -> Any:
        return self.mask_text(value) if isinstance(value, str) else value


def refuse_echoed_secrets(surface: Surface, sent_values: Iterable[tuple[str, str]]) -> None:
    """Raise SECRET_REPEATED if a surface contains a secret that was sent to the server: files would then contain it.

    Finds only the exact value and its JSON-escaped form. A server can still leak an encoded secret.
    """
    refuse_echoed_secrets_in([surface.server, [item.value for item in surface.all_items()]], sent_values)


def refuse_echoed_secrets_in(responses: Any, sent_values: Iterable[tuple[str, str]]) -> None:
    """Like `refuse_echoed_secrets`, for any response of a server."""
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
    text = "\n".join(_texts(responses))
    names = sorted({name for part, name in encoded_names.items() if part in text})
    if names:
        raise PinwardenError(
            "SECRET_REPEATED",
            f"the server's responses repeat a secret value that was sent to it: {', '.join(names)[:200]}",
            data={"names": names},
        )


def _texts(value: Any) -> Iterator[str]:
    """Every string in a value, including member names."""
    pending = [value]
    while pending:
        current = pending.pop()
        if isinstance(current, str):
            yield current
        elif isinstance(current, Mapping):
            pending += [*current.keys(), *current.values()]
        elif isinstance(current, list | tuple):
            pending += current
