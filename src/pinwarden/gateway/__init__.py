"""The enforcing proxy between clients and servers, over stdio and HTTP, with an audit log and reviews.

Start with `session/`, which decides on every message without I/O. `guard.py` has the approvals and the policy of one
server; `gates/` has the rules. The transports `stdio.py` and `http/` read messages, pass them to the session, record
its decisions (`recorder.py`, `audit/`), and send the output. `store/` and `review.py` handle pending reviews.

Pure modules: `session/`, `gates/` and `audit/event.py`. `guard.py` is pure too, except that it reloads approvals.
Only `cli` may import this package.
"""
