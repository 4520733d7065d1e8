"""The gateway as an OAuth 2.1 resource server, as revision 2026-07-28 of MCP has it.

A refusal tells the client where the metadata of the resource are (RFC 9728), these name the issuer, and the client
comes back with an access token for the URL of one server or of the gateway. A token for `/mcp` is valid for every
server, a token for `/mcp/NAME` only there. No token is passed on to a server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial

import orjson

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import replace
from pinwarden.gateway.http.header_checks import MCP_PREFIX, GatewayClient, KeysOutdatedError
from pinwarden.gateway.store.tokens import CALLS, METRICS, READ
from pinwarden.identity.access_tokens import AccessToken, build_token_rules, verify_access_token
from pinwarden.identity.issuer import Issuer
from pinwarden.identity.settings import ClientTokenSettings, IdentitySettings
from pinwarden.identity.signed_token import is_unknown_key
from pinwarden.system.target import HttpAddress

_METADATA = "/.well-known/oauth-protected-resource"
_SERVER = re.compile(r"/mcp(?:/[A-Za-z0-9._~-]{1,200})?")


class ResourceServer:
    """Verifies access tokens of one issuer, and describes the gateway to OAuth clients."""

    def __init__(
        self, settings: IdentitySettings, clients: ClientTokenSettings, issuer: Issuer, write_log: Callable[[str], None]
    ) -> None:
        self._issuer = issuer
        self._clients = clients
        self._write_log = write_log
        self._prefix = f"{clients.url}{MCP_PREFIX}"
        self._rules = replace(build_token_rules(settings, clients), audience_prefix=self._prefix)
        self._refreshing: asyncio.Task[None] | None = None
        self._scopes = [scope for scope in (clients.read_scope, clients.call_scope) if scope]
        self._problem = ""
        self.host = HttpAddress.parse(clients.url).host
        """The host name under which clients reach the gateway."""

    @property
    def problem(self) -> str:
        """Why the issuer cannot be used now; empty if it can. Shown on a public page, so it names no address."""
        error = self._issuer.error
        return "" if error is None else f"the keys of the issuer of access tokens cannot be fetched ({error.code})"

    @property
    def generation(self) -> int:
        """Increases when the keys of the issuer change."""
        return self._issuer.generation

    def verify(self, token: str, now: float) -> GatewayClient:
        """Return the client of a token. See `header_checks.TokenVerifier`."""
        try:
            verified = verify_access_token(token, self._issuer, self._rules, now)
        except PinwardenError as err:
            if not is_unknown_key(err):
                raise
            if self._issuer.needs_refresh(key_unknown=True):
                raise KeysOutdatedError from err
            if not self._issuer.has_keys:
                raise PinwardenError("ISSUER_UNAVAILABLE", "no key of the issuer is known") from err
            raise
        return self._build_client(verified)

    def _build_client(self, verified: AccessToken) -> GatewayClient:
        clients, held = self._clients, verified.scopes
        call = clients.call_scope in held if clients.call_scope else None
        read = call is True or not clients.read_scope or clients.read_scope in held
        granted = {READ: read, CALLS: read if call is None else call, METRICS: clients.metrics_scope in held}
        whole = bool(verified.audiences & self._rules.audiences)
        single = (name.removeprefix(self._prefix) for name in verified.audiences if name.startswith(self._prefix))
        return GatewayClient(
            name=name_client(verified.subject, verified.client_id),
            token=verified.issuer,
            person=(verified.issuer, verified.subject),
            teams=verified.groups,
            scopes=frozenset(scope for scope, has in granted.items() if has),
            resources=() if whole else tuple(single),
            expires_at=verified.expires_at + self._rules.limits.leeway_seconds,
        )

    def build_challenge(self, path: str, error: str = "") -> str:
        """Return the header ``WWW-Authenticate``. Its values are quoted and have nothing that needs escaping."""
        where = path if _SERVER.fullmatch(path) else "/mcp"
        parts = [f'resource_metadata="{self._clients.url}{_METADATA}{where}"']
        if error:
            parts.insert(0, f'error="{error}"')
        if self._scopes:
            parts.append(f'scope="{" ".join(self._scopes)}"')
        return f"Bearer {', '.join(parts)}"

    def build_metadata(self, path: str) -> bytes | None:
        """Return the metadata at a path; the same for servers that exist and that do not. The root describes `/mcp`."""
        if not path.startswith(_METADATA):
            return None
        resource = path.removeprefix(_METADATA) or "/mcp"
        if not _SERVER.fullmatch(resource):
            return None
        return orjson.dumps(
            {
                "resource": f"{self._clients.url}{resource}",
                "resource_name": "Pinwarden gateway",
                "authorization_servers": [self._rules.issuer],
                "bearer_methods_supported": ["header"],
                **({"scopes_supported": self._scopes} if self._scopes else {}),
            }
        )

    async def refresh_keys(self) -> None:
        """Fetch the keys of the issuer if that is due. Requests that need it at the same time share one fetch."""
        await self._refresh(key_unknown=True)

    async def refresh_if_outdated(self) -> None:
        """Fetch the keys of the issuer if they are not fresh."""
        if self._issuer.needs_refresh():
            await self._refresh(key_unknown=False)

    async def _refresh(self, *, key_unknown: bool) -> None:
        if self._refreshing is None:
            self._refreshing = asyncio.create_task(self._fetch(key_unknown=key_unknown))
        await asyncio.shield(self._refreshing)

    async def _fetch(self, *, key_unknown: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, partial(self._issuer.refresh, key_unknown=key_unknown))
        except PinwardenError:
            pass  # `problem` has it
        finally:
            self._refreshing = None
        if self._issuer.problem != self._problem:
            self._problem = self._issuer.problem
            self._write_log(self._problem or "the keys of the issuer can be fetched again")

    def close(self) -> None:
        """Close connections to the issuer."""
        self._issuer.close()


def name_client(subject: str, client_id: str) -> str:
    """Return the name of a client in rules and the audit log: ``subject@client``.

    The part after the last ``@`` is the client's, whatever the two contain. No static token has a name with ``@``.
    """
    return f"{subject}@{client_id.replace('%', '%25').replace('@', '%40')}"
