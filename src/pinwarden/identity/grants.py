"""The permissions of people for Pinwarden to use remote servers (grants), in the database, with encrypted tokens.

A grant belongs to one owner, server and address: a token is never used for another person, for a server of the same
name elsewhere, or after the server moved. These columns are also the context of the encryption, so that a row which was
copied to another owner cannot be decrypted.

`Grants.claim_refresh` lets one process refresh a grant at a time, because a refresh token may work only once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import sha256

from pinwarden.core.errors import PinwardenError
from pinwarden.core.record import Record, field_names, replace
from pinwarden.core.strict_json import parse_json
from pinwarden.identity.code_flow import ClientCredentials
from pinwarden.identity.grant_key import GrantKey
from pinwarden.identity.remote_flow import IssuedTokens, RemoteClient
from pinwarden.system.database import Database, Row
from pinwarden.system.target import strip_query

TOPIC = "grants"
"""The topic of notifications about grants."""
REFRESH_SECONDS = 60
"""How long one process has to refresh a grant: longer than its requests take."""


class GrantOwner(Record):
    """Whose grant it is. An issuer of people is a URL; the other issuers are below."""

    issuer: str
    subject: str


LOCAL, STATIC, SHARED = "local", "static", "shared"
"""The issuer of the user of a machine, of clients with a static token, and of what all users share."""
EVERYONE = GrantOwner(issuer=SHARED, subject="")


class Grant(Record):
    """One grant, without its tokens."""

    id: str
    owner_issuer: str
    owner_subject: str
    server: str
    address: str
    issuer: str
    client_id: str
    resource: str
    redirect_uri: str
    scopes: str
    """What was granted, separated by spaces."""
    wanted: str
    """What the server asked for since then, which the grant does not have."""
    expires_at: int
    """When the access token expires, in seconds since 1970; 0 if that is not known."""
    connected_at: str
    connected_by: str
    problem: str
    """Why the grant cannot be used any more; empty if it can."""
    revision: int
    """Increases whenever the tokens change."""

    @property
    def owner(self) -> GrantOwner:
        """Whose grant it is."""
        return GrantOwner(issuer=self.owner_issuer, subject=self.owner_subject)

    @property
    def context(self) -> bytes:
        """What the tokens are encrypted for."""
        parts = (self.id, self.owner_issuer, self.owner_subject, self.server, self.address)
        return json.dumps([*parts, self.issuer, self.client_id, self.resource]).encode()


_COLUMNS = ", ".join(field_names(Grant))


class Grants:
    """The grants in a database."""

    def __init__(self, database: Database, load_key: Callable[[], GrantKey]) -> None:
        """``load_key`` is called when a token is encrypted or decrypted for the first time."""
        self._database = database
        self._load_key = load_key
        self._loaded_key: GrantKey | None = None

    @property
    def key(self) -> GrantKey:
        """The key of the tokens. Raises GRANT_KEY_INVALID."""
        if self._loaded_key is None:
            self._loaded_key = self._load_key()
        return self._loaded_key

    def add(self, grant: Grant, client: RemoteClient, tokens: IssuedTokens) -> None:
        """Store a grant with its tokens. It replaces the one that this owner had for the server."""
        marks = ", ".join("?" for _ in field_names(Grant))
        row = [getattr(grant, name) for name in field_names(Grant)]
        with self._database.transaction(exclusive=TOPIC) as transaction:
            transaction.run(
                "DELETE FROM remote_grant WHERE owner_issuer = ? AND owner_subject = ? AND server = ? AND address = ?",
                (grant.owner_issuer, grant.owner_subject, grant.server, grant.address),
            )
            transaction.run(
                f"INSERT INTO remote_grant ({_COLUMNS}, refreshing_until, sealed) VALUES ({marks}, 0, ?)",  # noqa: S608
                (*row, self._seal(grant, client, tokens)),
            )
            transaction.notify(TOPIC)

    def find(self, owner: GrantOwner, server: str, address: str) -> Grant | None:
        """Return the grant of an owner for a server at an address; None if there is none."""
        row = self._database.row(
            f"SELECT {_COLUMNS} FROM remote_grant"  # noqa: S608
            " WHERE owner_issuer = ? AND owner_subject = ? AND server = ? AND address = ?",
            (owner.issuer, owner.subject, server, address),
        )
        return None if row is None else _to_grant(row)

    def open_tokens(self, grant: Grant) -> tuple[RemoteClient, IssuedTokens] | None:
        """Decrypt the tokens of a grant; None if they changed in the meantime. Raises GRANT_KEY_INVALID."""
        row = self._database.row(
            "SELECT sealed FROM remote_grant WHERE id = ? AND revision = ?", (grant.id, grant.revision)
        )
        if row is None:
            return None
        members = parse_json(self.key.unseal(bytes(row[0]), grant.context))
        credentials = ClientCredentials(client_id=grant.client_id, client_secret=members["client_secret"])
        client = RemoteClient(issuer=grant.issuer, credentials=credentials, resource=grant.resource)
        return client, IssuedTokens(
            access_token=members["access_token"],
            refresh_token=members["refresh_token"],
            expires_at=grant.expires_at,
            scopes=tuple(grant.scopes.split()),
        )

    def remove(self, grant_id: str) -> bool:
        """Delete a grant with its tokens."""
        with self._database.transaction(exclusive=TOPIC) as transaction:
            removed = transaction.run("DELETE FROM remote_grant WHERE id = ?", (grant_id,))
            transaction.notify(TOPIC)
        return bool(removed)

    def claim_refresh(self, grant: Grant, now: int) -> bool:
        """Claim the right to refresh a grant. Returns False if another process has it, or changed the tokens."""
        with self._database.transaction() as transaction:
            claimed = transaction.run(
                "UPDATE remote_grant SET refreshing_until = ? WHERE id = ? AND revision = ? AND refreshing_until <= ?",
                (now + REFRESH_SECONDS, grant.id, grant.revision, now),
            )
        return bool(claimed)

    def release_refresh(self, grant: Grant) -> None:
        """Give up the right to refresh a grant, because the refresh failed for now."""
        with self._database.transaction() as transaction:
            transaction.run(
                "UPDATE remote_grant SET refreshing_until = 0 WHERE id = ? AND revision = ?",
                (grant.id, grant.revision),
            )

    def store_refreshed(self, grant: Grant, client: RemoteClient, tokens: IssuedTokens) -> Grant:
        """Store renewed tokens. Raises REMOTE_NOT_CONNECTED if the grant was removed or replaced in the meantime."""
        renewed = replace(
            grant,
            scopes=" ".join(tokens.scopes),
            expires_at=tokens.expires_at,
            revision=grant.revision + 1,
            problem="",
        )
        with self._database.transaction() as transaction:
            stored = transaction.run(
                "UPDATE remote_grant SET sealed = ?, scopes = ?, expires_at = ?, revision = ?, problem = '',"
                " refreshing_until = 0 WHERE id = ? AND revision = ?",
                (
                    self._seal(renewed, client, tokens),
                    *(renewed.scopes, renewed.expires_at, renewed.revision),
                    *(grant.id, grant.revision),
                ),
            )
            transaction.notify(TOPIC)
        if not stored:
            raise PinwardenError("REMOTE_NOT_CONNECTED", f"{grant.server} was connected again or forgotten just now")
        return renewed

    def mark(self, grant: Grant, *, problem: str | None = None, wanted: Sequence[str] = ()) -> bool:
        """Store why a grant cannot be used, or which scopes it lacks. Returns whether that is new."""
        # Scopes leave the claim of a refresh alone: otherwise a server could have two processes refresh at once.
        column, more = ("wanted", "") if problem is None else ("problem", ", refreshing_until = 0")
        text = " ".join(wanted) if problem is None else problem
        with self._database.transaction() as transaction:
            changed = transaction.run(
                f"UPDATE remote_grant SET {column} = ?{more}"  # noqa: S608
                f" WHERE id = ? AND revision = ? AND {column} <> ?",
                (text, grant.id, grant.revision, text),
            )
            transaction.notify(TOPIC)
        return bool(changed)

    def _seal(self, grant: Grant, client: RemoteClient, tokens: IssuedTokens) -> bytes:
        members = {
            "access_token": tokens.access_token,
            "refresh_token": tokens.refresh_token,
            "client_secret": client.credentials.client_secret,
        }
        return self.key.seal(json.dumps(members).encode(), grant.context)


def list_grants(database: Database) -> list[Grant]:
    """Return all grants. No key is needed, because the tokens stay encrypted."""
    rows = database.rows(
        f"SELECT {_COLUMNS} FROM remote_grant ORDER BY server, address, owner_issuer, owner_subject"  # noqa: S608
    )
    return [_to_grant(row) for row in rows]


def name_address(url: str) -> str:
    """Return what identifies the address of a server in grants. A query may have a key, so only its digest is kept."""
    bare = strip_query(url)
    return bare if bare == url else f"{bare}#{sha256(url.encode()).hexdigest()[:16]}"


def _to_grant(row: Row) -> Grant:
    return Grant(**dict(zip(field_names(Grant), row, strict=True)))
