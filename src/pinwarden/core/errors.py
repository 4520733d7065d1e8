"""`PinwardenError`, the one exception type, and `CODES`, the table of all its codes.

``error_codes.py``, ``package_error_codes.py`` and ``registry_error_codes.py`` describe the codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pinwarden.core.error_codes import (
    EXIT_CLEAN,
    EXIT_REFUSED,
    EXIT_UNCHECKED,
    EXIT_USAGE,
    GENERAL_CODES,
    ErrorCode,
)
from pinwarden.core.package_error_codes import PACKAGE_CODES
from pinwarden.core.registry_error_codes import REGISTRY_CODES

__all__ = ["CODES", "EXIT_CLEAN", "EXIT_REFUSED", "EXIT_UNCHECKED", "EXIT_USAGE", "ErrorCode", "PinwardenError"]

CODES: Mapping[str, ErrorCode] = MappingProxyType(
    {row.code: row for row in (*GENERAL_CODES, *PACKAGE_CODES, *REGISTRY_CODES)}
)


class PinwardenError(Exception):
    """The exception for every failure that Pinwarden reports. ``code`` is stable; ``str()`` is the message.

    ``hint`` says what to do; the default is the hint of the code. ``--format json`` prints ``data``.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        data: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        row = CODES[code]  # an unknown code is a bug and raises KeyError
        self.code = code
        self.message = message
        self.hint = row.hint if hint is None else hint
        self.exit_code = row.exit_code
        self.data: Mapping[str, object] = {} if data is None else data
