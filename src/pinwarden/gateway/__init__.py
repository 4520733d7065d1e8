"""The enforcing proxy between clients and servers, over stdio and HTTP, with an audit log and reviews.

Start with `session/`, which decides about every message without I/O. `guard.py` has the approvals and the policy of one
server, `gates/` the decisions themselves. The transports `stdio.py` and `http/` read messages, ask the session, record
what it decided (`recorder.py`, `audit/`), and send. `store/` and `review.py` are for what a person has to review.

Pure: `session/`, `gates/`, `guard.py`, `audit/event.py`. Only `cli` may import this package.
"""
