"""The short way from the bytes of a request to the conversation that it belongs to.

Clients that keep a connection send the same heads again and again. What was found out about one (who asks, which
server, which tool, that everything about it is in order) is kept with its exact bytes, and counts as long as nothing
changes that it depends on. The message behind the head is read and judged each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinwarden.core.errors import PinwardenError
from pinwarden.core.limits import Limits
from pinwarden.core.strict_json import parse_json
from pinwarden.gateway.call_fast_path import CALL
from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.conversation import Conversation
from pinwarden.surface.protocol import VERSION_META

if TYPE_CHECKING:
    from pinwarden.gateway.http.endpoint import Endpoint
    from pinwarden.gateway.http.session_manager import Place

MOST_WAYS = 4096
"""Together they take a few megabytes."""
LONGEST_HEAD = 2048
"""Of a head that is kept."""
_LONGEST_BODY = 1 << 16  # longer ones have time for the general way


class Way:
    """A head of a POST with a call of a tool, and where that leads."""

    __slots__ = ("_conversation", "_endpoint", "_json", "_name", "_parameters", "_place", "_turn", "_version", "length")

    def __init__(  # noqa: PLR0913, PLR0917  a value of many parts
        self, endpoint: Endpoint, place: Place, conversation: Conversation, parameters: bytes, json: Limits, length: int
    ) -> None:
        self._endpoint = endpoint
        self._turn = endpoint.turn
        self._place = place
        self._conversation = conversation
        self._parameters = parameters
        self._json = json
        self._version = ""
        self._name = ""
        self.length = length
        """Of the body."""

    def only_for(self, version: str, name: str) -> None:
        """What the headers of the newest revision say, which the message has to say too."""
        self._version = version
        self._name = name

    def take(self, body: bytes, connection: ClientConnection) -> bool:
        """Send a call on its way; False if the request has to go the general way, and nothing was done."""
        conversation = self._conversation
        endpoint = self._endpoint
        if self._turn != endpoint.turn or conversation.closed or self.length > _LONGEST_BODY:
            return False
        try:
            message = parse_json(body, self._json)
        except PinwardenError:
            return False
        if type(message) is not dict or message.get("method") != CALL:
            return False
        params = message.get("params")
        if type(params) is not dict or type(name := params.get("name")) is not str:
            return False
        meta = params.get("_meta")
        if meta is not None and type(meta) is not dict:
            return False
        version = self._version
        if (meta is not None and meta.get(VERSION_META, "") != version) or (
            version and (name != self._name or not meta)
        ):
            return False
        if not conversation.call(body, message, name, connection, self._parameters, modern=bool(version)):
            return False
        endpoint.requests += 1
        self._place.requests += 1
        return True
