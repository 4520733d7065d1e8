"""The enforcing proxy between clients and servers, over stdio and HTTP, with an audit log and reviews.

Start with `session/`, which decides about every message without I/O. `guard.py` has the approvals and the policy of one
server; `gates/` has the rules. The transports `stdio.py` and `http/` read messages, pass them to the session, record
its decisions (`recorder.py`, `audit/`), and send the output. `store/` and `review.py` handle pending reviews.

Pure: `session/`, `gates/`, `audit/event.py`, and `guard.py`, except that the guard reads the approvals again.
Only `cli` may import this package.
"""
