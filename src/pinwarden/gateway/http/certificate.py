"""The certificate of a gateway, which may be renewed while it runs."""

from __future__ import annotations

import os
import ssl
from errno import errorcode
from pathlib import Path

from pinwarden.core.errors import PinwardenError


class Certificate:
    """What connections are secured with."""

    def __init__(self, certificate: Path, key: Path | None) -> None:
        self._certificate = certificate
        self._key = key
        self._stamps = self._seen()
        self.context = self._loaded()

    def look(self) -> str:
        """Use a renewed certificate from now on; why it cannot be used, if so. The old one stays then."""
        stamps = self._seen()
        if stamps == self._stamps:
            return ""
        self._stamps = stamps
        try:
            self._loaded()  # a trial: what fails half-way would leave neither the old nor the new one
            self.context.load_cert_chain(self._certificate, self._key, _no_password)
        except PinwardenError as err:
            return f"the old certificate is still used: {err.message}"
        except (OSError, ValueError) as err:
            return f"the old certificate is still used: {why_not(err)}"
        return ""

    def _seen(self) -> tuple[object, ...]:
        return tuple(file_stamp(path) for path in (self._certificate, self._key) if path is not None)

    def _loaded(self) -> ssl.SSLContext:
        certificate, key = self._certificate, self._key
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        for file in (certificate, key or certificate):
            try:
                file.open("rb").close()
            except OSError as err:
                raise _no_tls(f"{file} cannot be read: {why_not(err)}") from err
        files = str(certificate) if key is None else f"{certificate} with the key {key}"
        try:
            context.load_cert_chain(certificate, key, _no_password)
        except (OSError, ValueError) as err:  # an error of TLS is an OSError
            unfit = "it is not in PEM form, or certificate and key do not belong together"
            why = unfit if isinstance(err, ssl.SSLError) else why_not(err)
            raise _no_tls(f"the certificate {files} cannot be used: {why}") from err
        return context


def _no_tls(told: str) -> PinwardenError:
    return PinwardenError(
        "GATEWAY_UNAVAILABLE",
        told,
        hint="Name a certificate in PEM form with --tls-cert, and its key, without a password, with --tls-key.",
    )


def _no_password() -> str:
    """OpenSSL would ask for one on the terminal, and a gateway that nobody watches would wait for ever."""
    raise ValueError("the key is locked with a password")


def file_stamp(path: Path) -> object:
    """A cheap sign of a change."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def why_not(err: Exception) -> str:
    """The system's word for it. Event loops put sentences of their own in its place."""
    if isinstance(err, OSError) and err.errno is not None and err.errno in errorcode:
        return os.strerror(err.errno)
    return getattr(err, "strerror", None) or str(err)
