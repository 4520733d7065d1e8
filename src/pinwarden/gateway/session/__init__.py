"""One session between a client and a server, without I/O: a message goes in, messages and audit events come out.

Start with `session.py`: it parses a message, asks for a decision, and returns a `SessionOutput` (`output.py`) that the
transports (`gateway/stdio.py`, `gateway/http`) record and then send.

- `requests.py` decides on requests from the client, `responses.py` on responses from the server, and
  `server_requests.py` on requests and notifications from the server.
- `lists.py` keeps the server's lists with a verdict for each item; `server.py` keeps the verdicts about the server.
- `fast_path.py` forwards calls of approved tools, and their results, without going through the session.
- `deferred.py` queues messages that wait for a list; `messages.py` parses and builds JSON-RPC messages.
- `pages.py` parses pages of lists and removes items from them; `splice.py` edits JSON text in place.
- `tasks.py` maps tasks to the tools that started them; `list_subscription.py` subscribes to list-changed notifications.

All modules are pure: the caller passes the time.
"""
