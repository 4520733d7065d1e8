"""The gateway over Streamable HTTP: serves the locked servers to many clients.

Start with `gateway` (the root: reads lock, policy and tokens) and `endpoint` (from a request to its conversation). A
call takes one path: `connection` parses it with `http1`; `header_checks` and `endpoint` decide where it goes;
`conversation` lets the session judge it; `record_then_send` records and sends it; and a transport (`process_transport`,
`shared_process`, `remote_transport`) forwards it. The response comes back through `conversation` and `open_requests`.

Pure modules: `frames`, `http_limits`. Decisions about messages are not made here but in `gateway.session`. This package
must not import `dashboard` or `cli`.
"""
