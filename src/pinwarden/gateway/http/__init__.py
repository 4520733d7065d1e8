"""The gateway over Streamable HTTP: serves the locked servers to many clients.

Start with `gateway` (the root: reads lock, policy and tokens) and `endpoint` (from a request to its conversation). A
call takes one path: `connection` parses it with `http1`; `header_checks` and `endpoint` decide where it goes;
`conversation` lets the session decide, records and sends; a transport (`process_transport`, `shared_process`,
`remote_transport`) forwards it. The response comes back through `conversation` and `open_requests`.

Nothing here is pure except `http_limits`: decisions about messages are made in `gateway.session`.
"""
