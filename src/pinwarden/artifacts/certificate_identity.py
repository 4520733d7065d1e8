"""The identity in a code-signing certificate of sigstore's certificate authority, Fulcio.

https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md. Read it only out of certificates that were verified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pinwarden.artifacts.provenance import Identity, Kind, is_showable, plain_text
from pinwarden.core.errors import PinwardenError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_ARC = "1.3.6.1.4.1.57264.1."
_ISSUER_OLD, _COMMIT_OLD, _REPOSITORY_OLD, _REF_OLD = 1, 3, 5, 6  # plain text
_ISSUER, _BUILD_SIGNER, _RUNNER, _REPOSITORY, _COMMIT, _REF = 8, 9, 11, 12, 13, 14  # DER, UTF8String
_REPOSITORY_ID, _OWNER_ID, _BUILD_CONFIG = 15, 17, 18
_LAST_PLAIN = 7
_GITHUB = "https://token.actions.githubusercontent.com"


def identity_of(certificate: Certificate, kind: Kind) -> Identity:
    """Who the certificate was given to; raises PROVENANCE_INVALID if it does not say so in one way."""
    said = _extensions(certificate)
    issuer = said(_ISSUER) or said(_ISSUER_OLD)
    if not issuer or said(_ISSUER_OLD) not in ("", issuer):
        raise _invalid("does not say, or says twice, who vouched for its owner")
    uri, account = _owner(certificate)
    old_repository = said(_REPOSITORY_OLD) if issuer == _GITHUB else ""
    repository = said(_REPOSITORY) or (f"https://github.com/{old_repository}" if old_repository else "")
    ref = said(_REF) or said(_REF_OLD)
    config = _without_ref(said(_BUILD_CONFIG) or uri, ref)
    return Identity(
        kind=kind,
        issuer=issuer,
        signer=account,
        repository=repository,
        repository_id=said(_REPOSITORY_ID),
        owner_id=said(_OWNER_ID),
        workflow=_within(config, repository),
        ref=ref,
        builder=_without_ref(said(_BUILD_SIGNER) or uri, ref),
        runner=said(_RUNNER),
        commit=said(_COMMIT) or said(_COMMIT_OLD),
    )


def _extensions(certificate: Certificate) -> Callable[[int], str]:
    """Reads the text of an extension by its number; empty if it is not there."""
    from cryptography.x509 import UnrecognizedExtension

    found: dict[int, str] = {}
    for extension in certificate.extensions:
        dotted = extension.oid.dotted_string
        if dotted.startswith(_ARC) and isinstance(extension.value, UnrecognizedExtension):
            number, value = dotted.removeprefix(_ARC), extension.value.value
            if number.isdigit():
                found[int(number)] = _text(value if int(number) <= _LAST_PLAIN else _utf8_string(value))
    return lambda number: found.get(number, "")


def _owner(certificate: Certificate) -> tuple[str, str]:
    """The certificate's one subject: the address of a build, or the name of an account."""
    from cryptography.x509 import OtherName, RFC822Name, SubjectAlternativeName, UniformResourceIdentifier

    names = list(certificate.extensions.get_extension_for_class(SubjectAlternativeName).value)
    if len(names) != 1:
        raise _invalid("is not for one owner")
    name = names[0]
    if isinstance(name, UniformResourceIdentifier):
        return _text(name.value.encode()), ""
    if isinstance(name, RFC822Name):
        return "", _text(name.value.encode())
    if isinstance(name, OtherName) and name.type_id.dotted_string == f"{_ARC}7":
        return "", _text(_utf8_string(name.value))
    raise _invalid("has an owner of an unknown kind")


def _utf8_string(der: bytes) -> bytes:
    """The content of one UTF8String, and nothing after it."""
    if len(der) >= 2 and der[0] == 0x0C:
        if der[1] < 0x80:
            size, start = der[1], 2
        else:
            start = 2 + (der[1] & 0x7F)
            size = int.from_bytes(der[2:start])
        if size == len(der) - start:
            return der[start:]
    raise _invalid("has an extension that is not text")


def _text(value: bytes) -> str:
    try:
        text = plain_text(value.decode())
    except UnicodeDecodeError as err:
        raise _invalid("has an extension that is not text") from err
    if not is_showable(text):
        raise _invalid("has an extension that is too long")
    return text


def _without_ref(uri: str, ref: str) -> str:
    """Addresses of workflows end in the ref that they were taken from, and names of refs may hold an ``@``."""
    if ref and uri.endswith(f"@{ref}"):
        return uri.removesuffix(f"@{ref}")
    return uri.partition("@refs/")[0] if "@refs/" in uri else uri.rpartition("@")[0] or uri


def _within(uri: str, repository: str) -> str:
    return uri.removeprefix(repository).lstrip("/") if repository and uri.startswith(f"{repository}/") else ""


def _invalid(why: str) -> PinwardenError:
    return PinwardenError("PROVENANCE_INVALID", f"the certificate {why}")
