"""PEP 740 provenance documents: each attestation becomes a sigstore bundle, so that one verifier serves all registries.

Nothing is verified here. Statement, signature, certificate and log entries go over exactly as they were sent.
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as BinasciiError
from collections.abc import Mapping
from typing import Any, NoReturn

from pinwarden.core import strict_json
from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.record import Record, field

LIMITS = Limits(max_bytes=8 * 1024 * 1024)
"""One attestation has about ten kilobytes; a file has one or two."""

_BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAX_ATTESTATIONS = 100


class ProvenanceStatement(Record):
    """One attestation of a file."""

    predicate_type: str
    bundle: bytes = field(repr=False)
    """In the form of a sigstore bundle, version 0.3."""
    publisher: Mapping[str, Any] = field(default_factory=dict)
    """Who the index says published it. A claim: the certificate says who signed."""


def parse_provenance(data: bytes) -> tuple[ProvenanceStatement, ...]:
    """All attestations of one provenance document."""
    document = _object(strict_json.parse(data, LIMITS))
    if document.get("version") != 1:
        _invalid("is of a version that is not read here")
    found: list[ProvenanceStatement] = []
    for row in _rows(document.get("attestation_bundles")):
        bundle = _object(row)
        publisher = bundle.get("publisher")
        for attestation in _rows(bundle.get("attestations")):
            found.append(_statement(_object(attestation), publisher if isinstance(publisher, dict) else {}))
            if len(found) > _MAX_ATTESTATIONS:
                _invalid(f"has more than {_MAX_ATTESTATIONS} attestations")
    if not found:
        _invalid("has no attestation")
    return tuple(found)


def _statement(attestation: Mapping[str, Any], publisher: Mapping[str, Any]) -> ProvenanceStatement:
    if attestation.get("version") != 1:
        _invalid("has an attestation of a version that is not read here")
    material = _object(attestation.get("verification_material"))
    envelope = _object(attestation.get("envelope"))
    statement, signature = _base64(envelope.get("statement")), _base64(envelope.get("signature"))
    checked: dict[str, Any] = {
        "certificate": {"rawBytes": _base64(material.get("certificate"))},
        "tlogEntries": [dict(_object(entry)) for entry in _rows(material.get("transparency_entries"))],
    }
    if times := [_base64(each) for each in _rows(material.get("timestamps") or [])]:
        # Entries of the second kind of log have no time of their own.
        checked["timestampVerificationData"] = {"rfc3161Timestamps": [{"signedTimestamp": each} for each in times]}
    bundle = {
        "mediaType": _BUNDLE_TYPE,
        "verificationMaterial": checked,
        "dsseEnvelope": {
            "payload": statement,
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": signature}],
        },
    }
    inner = _object(strict_json.parse(b64decode(statement), LIMITS))
    predicate = inner.get("predicateType")
    if not isinstance(predicate, str) or not predicate:
        _invalid("has a statement that does not say what it states")
    return ProvenanceStatement(
        predicate_type=predicate, bundle=json.dumps(bundle, ensure_ascii=False).encode(), publisher=publisher
    )


def _base64(value: Any) -> str:
    if not isinstance(value, str):
        _invalid("lacks a value in base64")
    try:
        b64decode(value, validate=True)
    except (BinasciiError, ValueError) as err:
        raise _error("has a value that is not base64") from err
    return value


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _invalid("lacks an object")


def _rows(value: Any) -> list[Any]:
    return value if isinstance(value, list) else _invalid("lacks a list")


def _error(why: str) -> PinwardenError:
    return PinwardenError("FETCH_FAILED", f"a provenance document {why}", data={"reason": "protocol"})


def _invalid(why: str) -> NoReturn:
    raise _error(why)
