"""Output schemas of the commands about digests and signatures of a lock."""

from __future__ import annotations

from collections.abc import Callable

from tools.document_schemas import any_digest
from tools.outputs.parts import DID, POINTER, output
from tools.schema_words import (
    CODE,
    COUNT,
    FULL_TEXT,
    SRI,
    TEXT,
    TRUTH,
    Schema,
    array,
    exactly,
    one_of,
    or_null,
)

NAMED_PROBLEM: Schema = exactly(
    {"code": CODE, "path": POINTER, "message": TEXT, "server": or_null(TEXT), "client": or_null(TEXT)}
)
"""A problem of a lockfile."""


def lock_digest() -> Schema:
    body = exactly(
        {
            "digest": or_null(SRI),
            "seal": or_null(SRI),
            "entries": COUNT,
            "ok": TRUTH,
            "problems": array(NAMED_PROBLEM),
        },
        {"sealed": SRI},
    )
    return output("lock digest", body)


def lock_sign() -> Schema:
    body = exactly(
        {
            "file": FULL_TEXT,
            "signature": FULL_TEXT,
            "form": one_of(("dsse", "dev.toolpin.lock-signature")),
            "digest": or_null(SRI),
            "policy_digest": or_null(SRI),
            "signed_at": FULL_TEXT,
            "signers": array(exactly({"did": DID, "fingerprint": SRI}), minItems=1),
            "notes": array(TEXT),
        }
    )
    return output("lock sign", body)


def lock_publish() -> Schema:
    body = exactly(
        {
            "name": FULL_TEXT,
            "sequence": COUNT,
            "digest": any_digest(),
            "policy_digest": or_null(SRI),
            "signed_at": or_null(FULL_TEXT),
            "files": COUNT,
            "published": TRUTH,
        }
    )
    return output("lock publish", body, "The published lock. `published` is false if the newest one is the same.")


def lock_verify_signature() -> Schema:
    signer = exactly({"name": FULL_TEXT, "did": DID, "fingerprint": SRI})
    body = exactly(
        {
            "ok": TRUTH,
            "digest": or_null(SRI),
            "policy_digest": or_null(SRI),
            "signers": array(signer),
            "missing": array(TEXT),
            "rejected": array(TEXT),
            "problems": array(NAMED_PROBLEM),
        }
    )
    return output("lock verify-signature", body)


def keygen() -> Schema:
    body = exactly(
        {"private_key": FULL_TEXT, "public_key": FULL_TEXT, "did": DID, "fingerprint": SRI, "encrypted": TRUTH}
    )
    return output("keygen", body, "The files of the key pair and the public key. The private key is never printed.")


BY_COMMAND: dict[str, Callable[[], Schema]] = {
    "lock digest": lock_digest,
    "lock sign": lock_sign,
    "lock publish": lock_publish,
    "lock verify-signature": lock_verify_signature,
    "keygen": keygen,
}
