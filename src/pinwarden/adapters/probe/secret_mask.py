"""Keeps secrets out of what people and files get to see, also where a server echoes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinwarden.core.errors import PinwardenError

_SHORTEST = 4  # shorter values are no secrets, and masking them would make every text unreadable
_MASK = "***"


class SecretMask:
    """Knows the secrets of one probe and removes them from text."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # "Bearer abc" is a secret as a whole, and so is what follows the name of the scheme.
        parts = {part for secret in secrets for part in (secret, *secret.split()[1:])}
        self._secrets = sorted((part for part in parts if len(part) >= _SHORTEST), key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text without any of the secrets."""
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    def error(self, err: PinwardenError, details: Mapping[str, object]) -> PinwardenError:
        """The same error with more details and without secrets."""
        data = {name: self._value(value) for name, value in {**err.data, **details}.items()}
        return PinwardenError(err.code, self.text(err.message), hint=err.hint, data=data)

    def _value(self, value: Any) -> Any:
        return self.text(value) if isinstance(value, str) else value
