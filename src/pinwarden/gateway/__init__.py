"""The enforcing proxy between MCP clients and servers, on stdio and HTTP.

Start with `session.py`: it takes one message and returns what to send and to record, without I/O. A request goes
`call_fast_path` -> `request_decisions` -> `judged_server` and `judged_lists` -> `guard` -> `gates/`, answers and server
requests through `server_messages` and `result_checks`. `stdio.py` and `http/` are the transports, `gated_server.py` is
``pinwarden run``, `audit/` the hash-chained log, `store/` the tables, `review.py` the approval of changes.

Pure: `session` and everything it calls, `gates/`, `audit/event.py`. They import no transport, no database and no clock.
The gateway must not import `dashboard` or `cli`.
"""
