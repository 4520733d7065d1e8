"""A real OpenID provider (npm ``oidc-provider``), a person with a browser, and keys to forge tokens with.

The provider signs with keys that the test made, so a test can also sign a token that is wrong in exactly one way.
"""

from __future__ import annotations

import base64
import http.cookiejar
import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.support.needs import missing, needs
from tests.support.ports import reserved_port

NPM = Path(__file__).resolve().parents[1] / "npm"
needs_node = needs("node", install="tools/system-packages.sh npm")
USERS = {
    "alice": {"name": "Alice Example", "email": "alice@example.com", "groups": ["reviewers", "platform"]},
    "bob": {"name": "Bob Example", "email": "bob@example.com", "groups": []},
    "carol": {"name": "Carol Example", "email": "carol@example.com", "groups": ["security"]},
    "victor": {"name": "Victor Example", "email": "victor@example.com", "groups": ["staff"]},
}
"""The people that the provider knows. Any password is right."""
SECRET = "a-client-secret-of-the-tests"


class SigningKey:
    """An RSA key of the provider, which tests can sign with too."""

    def __init__(self, key_id: str) -> None:
        self.key_id = key_id
        self.private = rsa.generate_private_key(65537, 2048)

    @property
    def public_pem(self) -> bytes:
        return self.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def jwk(self, *, private: bool = False) -> dict[str, Any]:
        key = self.private if private else self.private.public_key()
        members = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key))
        members.pop("key_ops", None)
        return {**members, "kid": self.key_id, "alg": "RS256", "use": "sig"}

    def sign(self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> str:
        """A token with these claims. ``header`` adds members to ``alg``, ``kid`` and ``typ``, or replaces them."""
        head = {"typ": "at+jwt", "kid": self.key_id, **(header or {})}
        return jwt.api_jws.encode(json.dumps(claims).encode(), self.private, algorithm="RS256", headers=head)


def encode_part(value: object) -> str:
    """One part of a token."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class OidcProvider:
    """A running provider."""

    def __init__(self, issuer: str, keys: Sequence[SigningKey], folder: Path) -> None:
        self.issuer = issuer
        self.keys = list(keys)
        self.folder = folder
        self.settings: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        settings = {**self.settings, "keys": [key.jwk(private=True) for key in self.keys]}
        file = self.folder / "provider.json"
        file.write_text(json.dumps(settings))
        command = ["node", str(NPM / "oidc_provider.mjs"), str(file)]
        with (self.folder / "provider.log").open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == "listening":
                return
        raise AssertionError((self.folder / "provider.log").read_text())

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=60)
            self._process = None

    def restart(self, keys: Sequence[SigningKey] | None = None) -> None:
        """Start again, perhaps with other keys: the first one signs."""
        self.stop()
        self.keys = list(keys or self.keys)
        self.start()

    def client_token(self, client: str = "robot", resource: str = "", scope: str = "tools:call") -> str:
        """An access token that a client gets for itself."""
        form = {"grant_type": "client_credentials", "scope": scope, **({"resource": resource} if resource else {})}
        pair = base64.b64encode(f"{client}:{SECRET}".encode()).decode()
        request = urllib.request.Request(
            f"{self.issuer}/token", urllib.parse.urlencode(form).encode(), {"authorization": f"Basic {pair}"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            token: str = json.load(response)["access_token"]
        return token


@contextmanager
def oidc_provider(
    folder: Path,
    *,
    gateway: str = "http://127.0.0.1:8642",
    redirect_uris: Sequence[str] = ("http://127.0.0.1/callback",),
    resources: Sequence[str] = (),
    keys: Sequence[SigningKey] = (),
    **more: Any,
) -> Iterator[OidcProvider]:
    """Run a provider with the clients ``desk`` (a native application), ``robot`` and ``dashboard``."""
    if not (NPM / "node_modules/oidc-provider").is_dir():
        missing("npm oidc-provider", "tools/npm-packages.sh")
    port = reserved_port()
    provider = OidcProvider(f"http://127.0.0.1:{port}", keys or [SigningKey("k1")], folder)
    code = {"grant_types": ["authorization_code", "refresh_token"]}
    provider.settings = {
        "issuer": provider.issuer,
        "port": port,
        "scopes": ["tools:read", "tools:call"],
        "resources": [f"{gateway}/mcp", *resources],
        "users": USERS,
        "clientClaims": {},
        "thinIdTokens": False,
        "tokenSeconds": 600,
        "clients": [
            {
                "client_id": "desk",
                "token_endpoint_auth_method": "none",
                "application_type": "native",
                "redirect_uris": ["http://127.0.0.1/callback"],
                **code,
            },
            {
                "client_id": "robot",
                "client_secret": SECRET,
                "grant_types": ["client_credentials"],
                "redirect_uris": [],
                "response_types": [],
            },
            {
                "client_id": "dashboard",
                "client_secret": SECRET,
                "application_type": "native",
                "redirect_uris": list(redirect_uris),
                **code,
            },
        ],
        **more,
    }
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()


class Browser:
    """A person's browser at the provider: cookies, redirects and the two forms, without a screen."""

    def __init__(self) -> None:
        self.cookies = http.cookiejar.CookieJar()
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(self.cookies), _NoRedirects(), urllib.request.ProxyHandler({})
        )

    def log_in(self, url: str, user: str, issuer: str) -> str:
        """Open an authorization URL, log in and consent. Returns the URL that the browser is sent back to."""
        body = b""
        for _ in range(20):
            if not url.startswith(f"{issuer}/"):
                return url
            status, location, page = self._open(url, body)
            if status in (302, 303):
                url, body = urllib.parse.urljoin(url, location), b""
                continue
            action, prompt = re.search(r'action="([^"]+)"', page), re.search(r'name="prompt" value="(\w+)"', page)
            assert action, page
            assert prompt, page
            url = urllib.parse.urljoin(url, action[1])
            fields = {"prompt": prompt[1], **({"login": user, "password": "any"} if prompt[1] == "login" else {})}
            body = urllib.parse.urlencode(fields).encode()
        raise AssertionError(f"the login does not end: {url}")

    def get(self, url: str) -> int:
        """Open any other page. Returns its status."""
        return self._open(url, b"")[0]

    def _open(self, url: str, body: bytes) -> tuple[int, str, str]:
        try:
            with self._opener.open(url, body or None, timeout=60) as response:
                return response.status, "", response.read().decode()
        except urllib.error.HTTPError as err:
            with err:
                return err.code, err.headers.get("location", ""), err.read().decode()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
