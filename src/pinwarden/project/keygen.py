"""A fresh key pair in two files: the private one for its owner only, the public one for everybody."""

from __future__ import annotations

from pathlib import Path

from pinwarden.core.errors import EXIT_CLEAN, PinwardenError
from pinwarden.core.report import Report
from pinwarden.system.files import create_file
from pinwarden.system.key_files import create_key_file, generate_key


def make_key(path: Path, passphrase: bytes | None = None) -> Report:
    """The report of ``pinwarden keygen``. An existing file is never touched, and half a pair is never left."""
    public_path = path.with_name(path.name + ".pub")
    if public_path.exists() or public_path.is_symlink():
        raise PinwardenError("FILE_EXISTS", f"{public_path} exists already")
    key = generate_key()
    create_key_file(path, key, passphrase)
    try:
        create_file(public_path, key.public_key.pem())
    except PinwardenError:
        path.unlink(missing_ok=True)
        raise
    public = key.public_key
    protected = "encrypted" if passphrase else "not encrypted: whoever can read the file can sign"
    return Report(
        command="keygen",
        subject=path.name,
        summary=f"{public.did} {public.fingerprint}",
        exit_code=EXIT_CLEAN,
        notes=(
            f"{path} is the private key, {protected}; keep it out of version control",
            f"{public_path} is the public key; give it to whoever verifies",
        ),
        facts={
            "private_key": str(path),
            "public_key": str(public_path),
            "did": public.did,
            "fingerprint": public.fingerprint,
            "encrypted": passphrase is not None,
        },
    )
