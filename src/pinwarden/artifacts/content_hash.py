"""The content hash of a source-mode server: ``sha256:<hex>`` of its archive's bytes. Any difference is final."""

from __future__ import annotations

import re

from pinwarden.core.digest import Digest
from pinwarden.core.errors import PinwardenError

_FORM = re.compile(r"sha256:[0-9a-f]{64}")


def parse_content_hash(text: str) -> Digest:
    """A content hash in its only spelling."""
    if not isinstance(text, str) or not _FORM.fullmatch(text):
        raise PinwardenError("DIGEST_INVALID", f"{str(text)[:100]!a} is not a content hash (sha256:<hex>)")
    return Digest.parse(text)


def check_content(found: Digest, wanted: Digest, what: str) -> None:
    """Refuse bytes that are not the ones wanted."""
    if found != wanted:
        raise PinwardenError(
            "ARTIFACT_MISMATCH",
            f"{what[:200]} has the content hash {found}, and {wanted} was locked",
            data={"found": str(found), "wanted": str(wanted)},
        )
