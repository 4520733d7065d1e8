"""A whole sigstore of our own: certificate authority, certificate log and signature log, with nothing but cryptography.

``Forge()`` has fresh keys. Its trust root makes verifiers believe it, and only those that were given it.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GITHUB = "https://token.actions.githubusercontent.com"
IN_TOTO = "application/vnd.in-toto+json"
_CA_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "forged authority")])
_ORIGIN = "log.example"


def b64(data: bytes) -> str:
    return b64encode(data).decode()


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def public_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def signed(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(SHA256()))


def envelope_bytes(payload: bytes, payload_type: str = IN_TOTO) -> bytes:
    return b"DSSEv1 %d %b %d %b" % (len(payload_type), payload_type.encode(), len(payload), payload)


@dataclass(frozen=True, kw_only=True)
class Build:
    """Who a certificate is for: a workflow of a repository."""

    repository: str = "https://github.com/acme/slack-mcp"
    workflow: str = ".github/workflows/release.yml"
    ref: str = "refs/tags/v1.2.0"
    issuer: str = GITHUB
    repository_id: str = "1001"
    owner_id: str = "77"
    runner: str = "github-hosted"
    commit: str = "c" * 40
    builder: str = ""
    """The workflow that signs, with its ref, if it is another."""
    account: str = ""
    """An e-mail address: then it is for a person, and the rest says nothing."""
    old: bool = False
    """With the extensions that certificates had until 2023."""
    old_issuer: str = ""
    """What the old extension says, if it is something else than the new one."""
    for_code: bool = True
    """Whether the certificate may be used to sign code."""

    @property
    def config(self) -> str:
        return f"{self.repository}/{self.workflow}@{self.ref}"

    def extensions(self) -> dict[int, bytes]:
        if self.account:
            return {1: self.issuer.encode(), 8: _utf8(self.issuer)}
        if self.old:
            path = self.repository.removeprefix("https://github.com/")
            plain = {1: self.issuer, 2: "push", 3: self.commit, 4: "Release", 5: path, 6: self.ref}
            return {number: text.encode() for number, text in plain.items()}
        texts = {
            8: self.issuer,
            9: self.builder or self.config,
            11: self.runner,
            12: self.repository,
            13: self.commit,
            14: self.ref,
            15: self.repository_id,
            17: self.owner_id,
            18: self.config,
        }
        return {1: (self.old_issuer or self.issuer).encode(), **{number: _utf8(text) for number, text in texts.items()}}


def _utf8(text: str) -> bytes:
    return _der(12, text.encode())


def _der(tag: int, data: bytes) -> bytes:
    length = bytes([len(data)]) if len(data) < 128 else b"\x82" + len(data).to_bytes(2)
    if 128 <= len(data) < 256:
        length = b"\x81" + bytes([len(data)])
    return bytes([tag]) + length + data


@dataclass(kw_only=True)
class Forge:
    """One instance. Everything it signs was recorded at ``AT``."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    def trusted_root(self) -> dict[str, Any]:
        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            valid = {"start": "2025-01-01T00:00:00Z"}
            public = {"rawBytes": b64(spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": valid}
            identifier = {"keyId": b64(hashlib.sha256(spki(key)).digest())}
            url = "https://log.example"
            return {"baseUrl": url, "hashAlgorithm": "SHA2_256", "publicKey": public, "logId": identifier}

        ca = {
            "subject": {"organization": "forged", "commonName": "forged authority"},
            "uri": "https://ca.example",
            "certChain": {"certificates": [{"rawBytes": b64(self.ca_certificate().public_bytes(Encoding.DER))}]},
            "validFor": {"start": "2025-01-01T00:00:00Z"},
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log)],
            "certificateAuthorities": [ca],
            "ctlogs": [log(self.certificate_log)],
            "timestampAuthorities": [],
        }

    def ca_certificate(self) -> x509.Certificate:
        usage = _usage(sign=False)
        builder = x509.CertificateBuilder(_CA_NAME, _CA_NAME, self.authority.public_key(), 1)
        builder = builder.not_valid_before(AT - timedelta(days=400)).not_valid_after(AT + timedelta(days=4000))
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key())
        return builder.add_extension(identifier, critical=False).sign(self.authority, SHA256())

    def certificate(self, who: Build, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        """Made twice: the certificate log signs what is there before its own signature."""
        name = (
            x509.RFC822Name(who.account) if who.account else x509.UniformResourceIdentifier(who.builder or who.config)
        )
        builder = x509.CertificateBuilder(_CA_NAME, x509.Name([]), key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(AT - timedelta(minutes=1)).not_valid_after(AT + timedelta(minutes=9))
        builder = builder.add_extension(_usage(sign=True), critical=True)
        use = ExtendedKeyUsageOID.CODE_SIGNING if who.for_code else ExtendedKeyUsageOID.EMAIL_PROTECTION
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key())
        builder = builder.add_extension(issuer, critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([name]), critical=True)
        for number, value in who.extensions().items():
            oid = ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{number}")
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, value), critical=False)
        before = builder.sign(self.authority, SHA256())
        logged = x509.UnrecognizedExtension(ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2"), self._timestamps(before))
        return builder.add_extension(logged, critical=False).sign(self.authority, SHA256())

    def _timestamps(self, certificate: x509.Certificate) -> bytes:
        """The certificate log's signed timestamp (RFC 6962, section 3.2), as an extension holds it."""
        moment = int(AT.timestamp() * 1000).to_bytes(8)
        content = certificate.tbs_certificate_bytes
        issuer = hashlib.sha256(spki(self.authority)).digest()
        data = b"\0\0" + moment + b"\0\x01" + issuer + len(content).to_bytes(3) + content + b"\0\0"
        signature = signed(self.certificate_log, data)
        name = hashlib.sha256(spki(self.certificate_log)).digest()
        one = b"\0" + name + moment + b"\0\0" + b"\x04\x03" + len(signature).to_bytes(2) + signature
        listed = len(one).to_bytes(2) + one
        return _der(4, len(listed).to_bytes(2) + listed)

    # What is recorded in the signature log

    def promise(self, body: bytes) -> tuple[dict[str, Any], bytes]:
        """What the log promised to record, and its signature."""
        log_id = hashlib.sha256(spki(self.log)).digest()
        entry = {"body": b64(body), "integratedTime": int(AT.timestamp()), "logID": log_id.hex(), "logIndex": 0}
        return entry, signed(self.log, compact(entry))

    def entry(self, body: bytes, kind: str, version: str) -> dict[str, Any]:
        """A log entry in a tree of one leaf."""
        log_id = hashlib.sha256(spki(self.log)).digest()
        root = b64(hashlib.sha256(b"\0" + body).digest())
        note = f"{_ORIGIN}\n1\n{root}\n"
        mark = b64(log_id[:4] + signed(self.log, note.encode()))
        proof = {
            "logIndex": "0",
            "rootHash": root,
            "treeSize": "1",
            "hashes": [],
            "checkpoint": {"envelope": f"{note}\n— {_ORIGIN} {mark}\n"},
        }
        return {
            "logIndex": "0",
            "logId": {"keyId": b64(log_id)},
            "kindVersion": {"kind": kind, "version": version},
            "integratedTime": str(int(AT.timestamp())),
            "inclusionPromise": {"signedEntryTimestamp": b64(self.promise(body)[1])},
            "inclusionProof": proof,
            "canonicalizedBody": b64(body),
        }

    # Bundles

    def statement_bundle(
        self,
        payload: bytes,
        who: Build,
        *,
        kind: str = "dsse",
        payload_type: str = IN_TOTO,
        signed_with: ec.EllipticCurvePrivateKey | None = None,
    ) -> dict[str, Any]:
        """A statement, signed by a build. ``kind`` of the log entry: ``dsse``, or ``intoto`` as npm has it.

        ``signed_with`` is for a signature that is recorded and does not fit the certificate.
        """
        key = new_key()
        certificate = self.certificate(who, key)
        signature = signed(signed_with or key, envelope_bytes(payload, payload_type))
        pem = certificate.public_bytes(Encoding.PEM)
        body = intoto_body(payload, signature, pem) if kind == "intoto" else dsse_body(payload, signature, pem)
        entry = self.entry(body, kind, "0.0.2" if kind == "intoto" else "0.0.1")
        return {
            **bundle({"certificate": {"rawBytes": b64(certificate.public_bytes(Encoding.DER))}}, entry),
            "dsseEnvelope": {**envelope(payload, signature), "payloadType": payload_type},
        }

    def message_bundle(self, content_digest: bytes, who: Build) -> dict[str, Any]:
        """A signature over bytes with that SHA-256, by a build."""
        from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

        key = new_key()
        certificate = self.certificate(who, key)
        signature = key.sign(content_digest, ec.ECDSA(Prehashed(SHA256())))
        body = hashedrekord_body(content_digest, signature, certificate.public_bytes(Encoding.PEM))
        entry = self.entry(body, "hashedrekord", "0.0.1")
        digest = {"algorithm": "SHA2_256", "digest": b64(content_digest)}
        return {
            **bundle({"certificate": {"rawBytes": b64(certificate.public_bytes(Encoding.DER))}}, entry),
            "messageSignature": {"messageDigest": digest, "signature": b64(signature)},
        }

    def key_bundle(
        self, payload: bytes, key: ec.EllipticCurvePrivateKey, hint: str, *, kind: str = "intoto"
    ) -> dict[str, Any]:
        """A statement, signed with a key and without a certificate, as npm's registry does."""
        signature = signed(key, envelope_bytes(payload))
        pem = public_pem(key)
        body = intoto_body(payload, signature, pem) if kind == "intoto" else dsse_body(payload, signature, pem)
        entry = self.entry(body, kind, "0.0.2" if kind == "intoto" else "0.0.1")
        return {
            **bundle({"publicKey": {"hint": hint}}, entry),
            "dsseEnvelope": envelope(payload, signature),
        }

    def cosign_signature(
        self, payload: bytes, who: Build, *, signed_with: ec.EllipticCurvePrivateKey | None = None
    ) -> dict[str, Any]:
        """One of cosign's older signatures with certificate, as the OCI adapter passes it on."""
        key = new_key()
        pem = self.certificate(who, key).public_bytes(Encoding.PEM)
        signature = signed(signed_with or key, payload)
        promised, mark = self.promise(hashedrekord_body(hashlib.sha256(payload).digest(), signature, pem))
        annotations = {
            "dev.cosignproject.cosign/signature": b64(signature),
            "dev.sigstore.cosign/certificate": pem.decode(),
            "dev.sigstore.cosign/bundle": json.dumps({"SignedEntryTimestamp": b64(mark), "Payload": promised}),
        }
        return cosign(payload, annotations)


def cosign(payload: bytes, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {
        "annotations": dict(annotations),
        "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json",
        "payload": b64(payload),
    }


def bundle(signer: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {**signer, "tlogEntries": [entry]},
    }


def envelope(payload: bytes, signature: bytes) -> dict[str, Any]:
    return {"payload": b64(payload), "payloadType": IN_TOTO, "signatures": [{"sig": b64(signature)}]}


def _sha256(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def dsse_body(payload: bytes, signature: bytes, pem: bytes) -> bytes:
    spec = {
        "envelopeHash": _sha256(compact(envelope(payload, signature))),
        "payloadHash": _sha256(payload),
        "signatures": [{"signature": b64(signature), "verifier": b64(pem)}],
    }
    return compact({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})


def intoto_body(payload: bytes, signature: bytes, pem: bytes) -> bytes:
    rows = [{"publicKey": b64(pem), "sig": b64(b64(signature).encode())}]
    content = {
        "envelope": {"payloadType": IN_TOTO, "signatures": rows},
        "hash": _sha256(compact(envelope(payload, signature))),
        "payloadHash": _sha256(payload),
    }
    return compact({"apiVersion": "0.0.2", "kind": "intoto", "spec": {"content": content}})


def hashedrekord_body(digest: bytes, signature: bytes, pem: bytes) -> bytes:
    spec = {
        "data": {"hash": {"algorithm": "sha256", "value": digest.hex()}},
        "signature": {"content": b64(signature), "publicKey": {"content": b64(pem)}},
    }
    return compact({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec})


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=sign,
        key_cert_sign=not sign,
        crl_sign=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
