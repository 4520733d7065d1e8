"""The gateway over Streamable HTTP: serves the locked servers to many clients.

`gateway.HttpGateway` is the root object. It reads lock, policy and tokens, and owns one
`session_manager.SessionManager`, which knows every `session_manager.Upstream` (one locked server: its guard, its
recorder, and how to reach it; created by `upstreams`) and every open `conversation.Conversation` (one client with one
server). A conversation owns a `gateway.session` `Session`, which decides on messages, and an
`upstream_transport.UpstreamTransport`, which sends them: `process_transport`, `shared_process` or `remote_transport`.
The merged endpoint `/mcp` and a client whose protocol era differs from the server's use a `bridge.Bridge` instead of a
conversation. A bridge has one `backend.Backend` per server, and each backend has a conversation with its server.

A call takes one path: `connection` reads it with `http1`; `header_checks` and `endpoint` find its conversation;
`message_relay`, the base class of the conversation, lets the session decide, records the decision, and passes the call
to the transport. The response comes back through `message_relay` to the request in `open_requests`. Start reading with
`message_relay`; `gateway` and `endpoint` lead there. docs/architecture.md follows one call function by function.

Who holds a call, and until when:

======================================  ==================================  ==========================================
object                                  held by                             until
======================================  ==================================  ==========================================
`http1.Reply`, or the `ToolCall`        `connection.ClientConnection`       the response to the client is written
`PendingRequest`, or the `ToolCall`     `open_requests.OpenRequests`        the conversation has passed on the response
`ForwardedRequest`, or the tool's name  `gateway.session.session.Session`   the session has decided on the response
`PostedRequest`, or the `ToolCall`      `remote_transport.RemoteTransport`  the HTTP response of the server has ended
======================================  ==================================  ==========================================

The first of each pair is for any request. A tool call whose request head is cached is one object for all three places
in this package: an `open_requests.ToolCall`.

Two shortcuts are independent of each other. The cached route (`endpoint.CachedRoute`) leaves out the checks of the
headers, because the same bytes passed them before. The fast path (`gateway.session.fast_path.CallFastPath`) leaves out
the session, if it admits the call:

============  ================================  ======================================================================
head cached?  call admitted by the fast path?  what happens
============  ================================  ======================================================================
no            not asked                         `endpoint` checks the headers, and the session decides on the request
yes           no                                the session decides on the `ToolCall`
yes           yes                               the `ToolCall` is recorded and sent without the session
============  ================================  ======================================================================

A call that a cached route cannot send as it is, for example because its id is in use, is handled as if its head were
not cached.

All modules here do input or output, except `http_limits`. Decisions about messages are made in `gateway.session`.
"""
