"""A plain call of a tool on its way to a server and back.

Nearly every request is one, so all that is known about it is in one object: it is what the conversation waits for,
what the client's connection has in work, and what the connection to the server has sent. Whatever is not plain about
it is left to the objects that do the same for all other requests, which are made then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinwarden.gateway.http.connection import ClientConnection
from pinwarden.gateway.http.messages import Frame, Id, encoded, with_id, with_value
from pinwarden.gateway.http.reply import Reply
from pinwarden.gateway.http.response_sink import HttpExchange
from pinwarden.gateway.http.sending import NOBODY, Cuttable, Listener

if TYPE_CHECKING:
    from pinwarden.gateway.http.conversation import Conversation
    from pinwarden.gateway.http.remote import RemoteLink

OK = 200


class Call:
    """One call."""

    __slots__ = (
        *("_connection", "_conversation", "_exchange", "_modern", "data", "deadline", "given_up", "link", "listener"),
        *("number", "own_id", "parameters", "renumbered", "sent", "token", "upstream"),
    )
    own_token = None
    stream = False

    def __init__(  # noqa: PLR0913, PLR0917  a value of many parts
        self,
        conversation: Conversation,
        connection: ClientConnection,
        number: Id,
        own_id: int | str,
        parameters: bytes,
        sent: float,
        *,
        modern: bool,
    ) -> None:
        self._conversation = conversation
        self._connection: ClientConnection | None = connection
        self._exchange: HttpExchange | None = None
        self._modern = modern
        self.number = number
        """Its id on the way to the server."""
        self.own_id = own_id
        """The id that the client chose."""
        self.renumbered = number[1] is not own_id
        self.token: Id | None = None
        """By which the server reports progress. A call with a token is never renumbered."""
        self.parameters = parameters
        self.sent = self.deadline = sent
        self.data = b""
        self.given_up = False
        self.listener: Listener = NOBODY
        self.link: RemoteLink | None = None
        self.upstream: Cuttable | None = None

    # For the conversation

    @property
    def waiting(self) -> Call:
        """Who waits."""
        return self

    @property
    def open(self) -> bool:
        """Whether the client still waits."""
        return self._connection is not None

    def result(self, data: bytes, message: Any) -> None:
        """The answer is a result, and nothing else came before it."""
        connection = self._connection
        if connection is None:
            return  # nobody waits
        if self.renumbered:
            own_id = self.own_id
            restored = with_id(data, self.number[1], own_id) if type(own_id) is int else None
            data = with_value(data, ("id",), encoded(self.own_id)) if restored is None else restored
        if self._exchange is not None:
            self._exchange.answered(Frame(data, message), 0)
        else:
            connection.result(data)

    def message(self, frame: Frame) -> None:
        """A message that belongs to the call and is not its answer."""
        self._general().message(frame)

    def answered(self, frame: Frame, status: int) -> None:
        """The answer."""
        self._general().answered(frame, status)

    def failed(self, code: int, why: str) -> None:
        """There will be no answer."""
        self._general().failed(code, why)

    def refused_unread(self, why: str) -> None:
        """There will be no answer in this session."""
        self._general().refused_unread(why)

    def dropped(self) -> None:
        """There will be no answer, and nobody waits for one."""
        self._general().dropped()

    def _general(self) -> HttpExchange:
        if self._exchange is None:
            reply = Reply(self._connection, keep_alive=True)
            reply.on_gone = self.gone
            reply.client = self.client
            if self._connection is not None:
                self._connection.in_work(reply)
            self._exchange = HttpExchange(reply, self.own_id, modern=self._modern)
        return self._exchange

    # For the connection of the client

    def gone(self) -> None:
        """The client went away. In the newest revision that is how a call is cancelled."""
        self._connection = None
        if self._modern:
            self._conversation.give_up(self.number)

    # For the connection to the server

    @property
    def client(self) -> str:
        """Whose call it is."""
        return self._conversation.session.client

    def give_up(self) -> None:
        """Cut it off: the server sees that nobody waits for the answer."""
        self.given_up = True
        self.data = b""
        if self.upstream is not None:
            self.upstream.abort()

    def on_whole(self, status: int, session: str, body: bytes) -> None:
        """The answer came in one piece."""
        if status != OK or body[:1] != b"{" or body[-1:] != b"}" or self.link is None:
            self._general_listener().on_whole(status, session, body)
            return
        conversation = self._conversation
        self.listener = NOBODY  # and so it is gone with its answer, without a search for circles
        self.link.answered(self.number)
        if not conversation.from_server(body, asked=self.number):
            conversation.unanswered(self.number, "no answer came")

    def on_head(self, status: int, session: str) -> None:
        """The answer comes in parts."""
        self._general_listener().on_head(status, session)

    def on_frame(self, frame: bytes) -> None:
        """Not without a head."""

    def on_end(self) -> None:
        """Not without a head."""

    def on_lost(self, why: str, *, sent: bool) -> None:
        """There is no answer."""
        self._general_listener().on_lost(why, sent=sent)

    def _general_listener(self) -> Listener:
        if self.link is not None:
            self.listener = self.link.listener(self.number)
        return self.listener
