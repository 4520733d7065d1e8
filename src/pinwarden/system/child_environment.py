"""The environment that a probed server gets: a short list of harmless variables, and what its owner gave it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

# What programs need to find themselves and to speak the right language. Nothing here holds a secret.
_INHERITED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "USERPROFILE", "HOMEDRIVE", "HOMEPATH"),
        *("APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROCESSOR_ARCHITECTURE"),
        # Paths of certificates: behind a company's own authority nothing is downloaded without them.
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
    }
)


def child_environment(own: Mapping[str, str], inherited: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The variables of a server: those inherited by name, then its own, which win."""
    allowed = {*_INHERITED, *also}
    kept = {
        name: value
        for name, value in inherited.items()
        if name in allowed or name.upper() in _INHERITED or name.startswith("LC_")
    }
    return {**kept, **own}
