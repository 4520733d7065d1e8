"""MCPB bundles as the official program packs and signs them, certificates for that, and what openssl says of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tests.support.needs import missing, needs

CLI = Path(__file__).parents[1] / "mcpb-cli/node_modules/@anthropic-ai/mcpb/dist/cli/cli.js"
needs_node = needs("node", install="apt-get install nodejs")
needs_openssl = needs("openssl", install="apt-get install openssl")
HEADER, FOOTER = b"MCPB_SIG_V1", b"MCPB_SIG_END"
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """Always the same for a number: making one takes long."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A key with its certificate."""

    key: Key
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(hashes.SHA256()).hex()

    def save(self, folder: Path, name: str) -> tuple[Path, Path]:
        """Certificate and key as files."""
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(self.pem)
        key.write_bytes(self.key_pem)
        return certificate, key


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a certificate should be like."""

    name: str = "Acme Notes"
    key: Key | None = None
    authority: bool = False
    path_length: int | None = None
    days: tuple[int, int] = (-10, 365)
    """From when until when, counted from today."""
    purposes: Sequence[x509.ObjectIdentifier] | None = (ExtendedKeyUsageOID.CODE_SIGNING,)
    may_sign: bool = True
    hash: hashes.HashAlgorithm | None = None
    extra: Sequence[tuple[x509.ExtensionType, bool]] = ()
    claims: x509.Name | None = None
    """An issuer to name instead of the one that signs."""


def issue(wish: Wish, by: Identity | None = None) -> Identity:
    """A certificate, issued by somebody or by itself."""
    key = wish.key or rsa_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wish.name)])
    today = datetime.now(UTC).replace(microsecond=0)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(wish.claims or (by.certificate.subject if by else name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today + timedelta(days=wish.days[0]))
        .not_valid_after(today + timedelta(days=wish.days[1]))
        .add_extension(x509.BasicConstraints(ca=wish.authority, path_length=wish.path_length), critical=True)
        .add_extension(_usage(wish), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if wish.purposes is not None and not wish.authority:
        builder = builder.add_extension(x509.ExtendedKeyUsage(wish.purposes), critical=False)
    for extension, critical in wish.extra:
        builder = builder.add_extension(extension, critical=critical)
    signer = by.key if by else key
    made_with = None if isinstance(signer, ed25519.Ed25519PrivateKey) else wish.hash or hashes.SHA256()
    return Identity(key=key, certificate=builder.sign(signer, made_with))  # type: ignore[arg-type]


def _usage(wish: Wish) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=wish.may_sign and not wish.authority,
        content_commitment=False,
        key_encipherment=not wish.may_sign,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=wish.authority and wish.may_sign,
        crl_sign=wish.authority,
        encipher_only=False,
        decipher_only=False,
    )


def authority(name: str = "Acme Root", number: int = 1, **wish: Any) -> Identity:
    """A certificate authority of its own making."""
    return issue(Wish(name=name, key=wish.pop("key", None) or rsa_key(number), authority=True, **wish))


def issued_with_sha1(folder: Path, by: Identity) -> Identity:
    """A certificate as they were made until about 2015; the cryptography package makes none any more."""
    key = rsa_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Old Notes")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    (folder / "request.pem").write_bytes(request.public_bytes(Encoding.PEM))
    certificate, secret = by.save(folder, "issuer")
    command = [
        "openssl",
        "x509",
        "-req",
        "-sha1",
        "-days",
        "30",
        "-set_serial",
        "77",
        "-in",
        str(folder / "request.pem"),
    ]
    done = subprocess.run([*command, "-CA", str(certificate), "-CAkey", str(secret)], capture_output=True, check=True)
    return Identity(key=key, certificate=x509.load_pem_x509_certificate(done.stdout))


def manifest(**members: Any) -> dict[str, Any]:
    """The manifest of a small node server."""
    return {
        "manifest_version": "0.3",
        "name": "acme-notes",
        "version": "1.0.0",
        "description": "Keeps notes",
        "author": {"name": "Acme"},
        "server": {
            "type": "node",
            "entry_point": "server/index.js",
            "mcp_config": {"command": "node", "args": ["${__dirname}/server/index.js"]},
        },
        **members,
    }


FILES: Mapping[str, str] = {"server/index.js": "console.log('notes', process.argv.slice(2).join(','))\n"}


def run_cli(*arguments: str | Path) -> None:
    """The official program."""
    if not CLI.is_file():
        missing("the official mcpb program", "tools/npm-packages.sh")
    done = subprocess.run(
        ["node", str(CLI), *map(str, arguments)], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr


def packed(folder: Path, files: Mapping[str, str] = FILES, **members: Any) -> Path:
    """A bundle, packed by the official program."""
    source = folder / "source"
    for path, text in {**files, "manifest.json": json.dumps(manifest(**members))}.items():
        place = source / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        if text.startswith("#!"):
            place.chmod(0o755)
    bundle = folder / "acme-notes.mcpb"
    run_cli("pack", source, bundle)
    return bundle


def sign_with_cli(bundle: Path, signer: Identity, intermediates: Sequence[Identity] = ()) -> None:
    """Append a signature with the official program."""
    certificate, key = signer.save(bundle.parent, "signer")
    more: list[str | Path] = []
    for number, each in enumerate(intermediates):
        more += ["--intermediate" if not more else "", each.save(bundle.parent, f"between{number}")[0]]
    run_cli("sign", bundle, "--cert", certificate, "--key", key, *(each for each in more if each))


def block(signature: bytes, length: int | None = None) -> bytes:
    """A signature block; ``length`` lies."""
    return HEADER + (len(signature) if length is None else length).to_bytes(4, "little") + signature + FOOTER


def signature_in(bundle: bytes) -> tuple[bytes, bytes]:
    """Content and signature of an honest bundle."""
    start = bundle.rindex(HEADER)
    return bundle[:start], bundle[start + len(HEADER) + 4 : -len(FOOTER)]


def sign_with_openssl(
    folder: Path, content: bytes, signer: Identity, *options: str, certificates: Sequence[Identity] = ()
) -> bytes:
    """A detached CMS signature."""
    (folder / "content").write_bytes(content)
    certificate, key = signer.save(folder, "openssl-signer")
    more: list[str] = []
    if certificates:
        (folder / "more.pem").write_bytes(b"".join(each.pem for each in certificates))
        more = ["-certfile", str(folder / "more.pem")]
    command = ["openssl", "cms", "-sign", "-binary", "-outform", "DER", "-in", str(folder / "content")]
    command += ["-signer", str(certificate), "-inkey", str(key), *more, *options]
    return subprocess.run(command, capture_output=True, check=True).stdout


def openssl_says(
    folder: Path, content: bytes, signature: bytes, anchors: Sequence[Identity]
) -> Literal["valid", "valid-untrusted", "invalid"]:
    """What openssl says: with certificates checked, or at least without."""
    (folder / "content").write_bytes(content)
    (folder / "signature").write_bytes(signature)
    (folder / "anchors.pem").write_bytes(b"".join(each.pem for each in anchors))
    command = ["openssl", "cms", "-verify", "-binary", "-inform", "DER", "-in", str(folder / "signature")]
    command += ["-content", str(folder / "content"), "-out", "/dev/null"]
    trusting = ["-CAfile", str(folder / "anchors.pem"), "-purpose", "any"] if anchors else ["-no-CAfile", "-no-CApath"]
    if subprocess.run([*command, *trusting], capture_output=True, check=False).returncode == 0:
        return "valid"
    unchecked = subprocess.run([*command, "-noverify"], capture_output=True, check=False)
    return "valid-untrusted" if unchecked.returncode == 0 else "invalid"
