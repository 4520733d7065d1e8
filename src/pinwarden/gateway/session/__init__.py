"""One session between a client and a server, without I/O: a message goes in, messages and audit events come out.

Start with `session.py`: it parses a message, asks for a decision, and returns a `SessionOutput` (`output.py`) that the
transports (`gateway/stdio.py`, `gateway/http`) record and then send.

- `requests.py` decides about requests of the client, `responses.py` about responses of the server, and
  `server_requests.py` about requests and notifications of the server.
- `lists.py` has the server's lists with a verdict for each item, and `server.py` the verdicts about the server itself.
- `fast_path.py` forwards calls of approved tools, and their results, without going through the session.
- `deferred.py` keeps messages that wait for a list, and `messages.py` reads and makes JSON-RPC messages.
- `pages.py` parses pages of lists and removes items from them; `splice.py` edits JSON text in place.
- `tasks.py` knows which tool started a task, and `list_subscription.py` subscribes to list-changed notifications.

All modules are pure: the caller passes the time.
"""
