"""The gateway over Streamable HTTP: serves the locked servers to many clients.

`gateway.HttpGateway` is the root object. It reads lock, policy and tokens, and owns one
`session_manager.SessionManager`, which knows every `session_manager.Upstream` (one locked server: its guard, its
recorder, and how to reach it; created by `upstreams`) and every open `conversation.Conversation` (one client with one
server). A conversation owns a `gateway.session` `Session`, which decides about messages, and an
`upstream_transport.UpstreamTransport`, which sends them: `process_transport`, `shared_process` or `remote_transport`.
The merged endpoint `/mcp` and a client whose protocol era differs from the server's use a `bridge.Bridge` instead of a
conversation. A bridge has one `backend.Backend` per server, and each backend has a conversation with its server.

A call takes one path: `connection` reads it with `http1`; `header_checks` and `endpoint` find its conversation;
`message_relay`, the base class of the conversation, lets the session decide, records the decision, and passes the call
to the transport. The response comes back through `message_relay` to the request in `open_requests`. Start reading with
`message_relay`; `gateway` and `endpoint` lead there.

All modules here do input or output, except `http_limits`. Decisions about messages are made in `gateway.session`.
"""
