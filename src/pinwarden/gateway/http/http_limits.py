"""The limits of the HTTP gateway, each with its reason."""

from __future__ import annotations

from pinwarden.core.record import Record


class HttpLimits(Record):
    """Limits of connections, messages, timeouts and memory."""

    max_head_bytes: int = 32 * 1024
    """Request line and headers. Real ones are below 4 KiB, also with a long token."""
    max_headers: int = 100
    max_upstream_head_bytes: int = 64 * 1024
    """Head of a server's response, and framing between two parts of its body. Real heads are below 8 KiB."""
    max_body_bytes: int = 32 * 1024 * 1024
    """One message of a client. Arguments are seldom above a megabyte."""
    max_body_values: int = 1_000_000
    """Weight of the values in one message of a client (`Limits.max_values`). Parsing takes a tenth of a second."""
    max_answer_bytes: int = 128 * 1024 * 1024
    """One message of a server. Results of 50 MB occur: images and files as base64."""
    max_bytes_at_once: int = 64 * 1024
    """Bytes of a server's message that are judged on the event loop. Longer messages are judged on a thread: a list of
    5,000 tools takes a second, and other clients must not wait for it."""
    max_client_judging: int = 64
    """Long messages of one client that wait to be parsed or judged. More get an error, or status 503."""
    judging_wait_seconds: float = 30.0
    """How long such a message waits before it gets the same error. Clients wait about a minute."""
    max_frames_at_once: int = 16
    """Messages of one server that are processed in one loop iteration. Each takes at least a tenth of a millisecond."""
    max_connections: int = 2048
    """Client connections. Each costs a few kilobytes while it is idle."""
    max_upstream_connections: int = 512
    """Connections to one remote server. Further requests are queued."""
    max_client_upstream_connections: int = 384
    """Share of one client. Its further requests wait for its own responses; other clients are not affected."""
    max_upstream_streams: int = 256
    """Share of endless streams. The other connections are left for requests."""
    max_client_streams: int = 128
    """Streams of one client. One more gets an error immediately."""
    max_sessions: int = 1000
    """Sessions of the handshake era, of all clients. Each has its own process, so that clients never share state."""
    max_client_sessions: int = 200
    """Sessions of one client. If it opens more, its least recently used session ends."""
    max_children: int = 256
    """Server processes of all clients. At the limit, the client with the most loses one to a client with fewer."""
    share_processes: bool = True
    """Whether all clients share one process of a server whose protocol allows that."""
    shared_ping_seconds: float = 10.0
    """Time for a shared process to answer a ping, after a request timed out. Then it is replaced."""
    max_shared_in_flight: int = 64
    """Requests of one client in a shared process. Further ones wait; other clients are not affected."""
    slot_seconds: float = 10.0
    """Time for an evicted process to end. It is killed after `grace_seconds`."""
    max_in_flight: int = 1000
    """Open requests of one conversation."""
    max_pipelined: int = 16
    """Pipelined requests of one connection. Beyond that it is not read from until one is answered."""
    max_unsent_bytes: int = 160 * 1024 * 1024
    """Write buffer of one connection: one largest response and some notifications. Beyond that it is closed."""
    max_all_unsent_bytes: int = 512 * 1024 * 1024
    """Write buffers of all connections. Beyond that the slowest readers are disconnected."""
    unread_seconds: float = 60.0
    """How long a client may read nothing while data waits for it."""
    max_all_body_bytes: int = 512 * 1024 * 1024
    """Received bytes of unanswered large requests, of all clients. Further ones get status 503."""
    max_client_body_bytes: int = 256 * 1024 * 1024
    """Share of one client, so that half is left for the others."""
    max_all_waiting_bytes: int = 512 * 1024 * 1024
    """Bytes that wait for servers to read them, for lists to be judged, and for the end of partial messages, in all
    conversations. Beyond that the conversations with the most bytes are ended."""
    max_waiting_frames: int = 1000
    """Messages of one conversation that wait for the client to open its notification stream."""
    max_waiting_bytes: int = 4 * 1024 * 1024
    """Bytes of those messages."""
    head_seconds: float = 10.0
    """Time for the head of a request, so that slow senders cannot occupy connections."""
    body_seconds: float = 60.0
    """Time for the body of a request."""
    idle_seconds: float = 75.0
    """Time until the next request on an idle connection."""
    connect_seconds: float = 10.0
    """Time to connect to a remote server."""
    idle_upstream_seconds: float = 4.0
    """How long an idle connection to a remote server is kept. Common servers close theirs after five seconds."""
    answer_seconds: float = 300.0
    """Time for a response. Progress restarts it."""
    merged_opening_seconds: float = 30.0
    """Time for a server behind `/mcp` to open a session, including its start."""
    merged_again_seconds: float = 5.0
    """Pause between attempts to open a session with a server behind `/mcp` that failed."""
    merged_list_seconds: float = 10.0
    """Time for one list of a server behind `/mcp`. Real servers take a second or two, and clients wait about a minute
    for all lists. A slower server is left out until it has listed."""
    session_seconds: float = 1800.0
    """How long an unused session and its process are kept."""
    ping_seconds: float = 15.0
    """Interval of comments on an idle event stream, which keep it open through proxies."""
    drain_seconds: float = 10.0
    """Time for open requests when the gateway shuts down."""
    first_backoff_seconds: float = 0.2
    """Pause before a process is started again; doubled after each early end."""
    longest_backoff_seconds: float = 30.0
    stable_seconds: float = 10.0
    """A process that ran at least so long did not end early."""
    grace_seconds: float = 2.0
    """Time for a process to end by itself, and for a remote server to accept the last notifications."""
    reload_seconds: float = 1.0
    """Interval at which lock, policy and tokens are checked for changes."""
    tokens_seconds: float = 5.0
    """Time to read the tokens. A database that takes longer counts as unavailable."""
    kept_stderr_bytes: int = 4096
    """Bytes of a standard-error line of a process that are logged."""
