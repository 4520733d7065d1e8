"""The limits of the HTTP gateway, each with its reason."""

from __future__ import annotations

from pinwarden.core.record import Record


class HttpLimits(Record):
    """Limits of connections, messages, timeouts and memory."""

    max_head_bytes: int = 32 * 1024
    """Request line and headers. In practice they are below 4 KiB, even with a long token."""
    max_headers: int = 100
    max_upstream_head_bytes: int = 64 * 1024
    """Head of a server's response, and framing between two parts of its body. In practice, heads are below 8 KiB."""
    max_body_bytes: int = 32 * 1024 * 1024
    """One message of a client. Arguments rarely exceed a megabyte."""
    max_body_values: int = 1_000_000
    """Values in one message of a client, as `Limits.max_values` counts them. Parsing that many takes 0.1 s."""
    max_server_message_bytes: int = 128 * 1024 * 1024
    """One message of a server. Results of 50 MB occur: images and files as base64."""
    max_bytes_at_once: int = 64 * 1024
    """Server messages up to this size are evaluated on the event loop. Longer ones are evaluated on a thread: a list of
    5,000 tools takes a second, and other clients must not wait for it."""
    max_client_slow_messages: int = 64
    """Long messages of one client in the executor's queue. Further ones get an error or status 503."""
    slow_message_seconds: float = 30.0
    """How long a message may stay in that queue before it gets the same error. Clients wait about a minute."""
    max_messages_at_once: int = 16
    """Messages of one server that are processed in one iteration of the event loop. Each takes at least 0.1 ms."""
    max_connections: int = 2048
    """Client connections. Each costs a few kilobytes while it is idle."""
    max_upstream_connections: int = 512
    """Connections to one remote server. Further requests are queued."""
    max_client_upstream_connections: int = 384
    """Connections to one remote server that one client may use. Its further requests are queued."""
    max_upstream_streams: int = 256
    """Endless streams to one remote server. The other connections are reserved for requests."""
    max_client_streams: int = 128
    """Endless streams of one client to one remote server. Further ones get an error immediately."""
    max_sessions: int = 1000
    """Sessions of the handshake era, of all clients. Each has its own process, so that clients never share state."""
    max_client_sessions: int = 200
    """Sessions of one client. If it opens more, its least recently used session ends."""
    max_processes: int = 256
    """Server processes of all clients. At the limit, the client with the most loses one to a client with fewer."""
    share_processes: bool = True
    """Whether all clients share one process of a stateless server, if its capabilities allow that."""
    shared_ping_seconds: float = 10.0
    """Time for a shared process to answer a ping after a request timed out. A process that does not is replaced."""
    max_shared_in_flight: int = 64
    """Open requests of one client in a shared process. Further ones are queued."""
    eviction_seconds: float = 10.0
    """Time for an evicted process to end. It is killed after `grace_seconds`."""
    max_in_flight: int = 1000
    """Open requests of one conversation."""
    max_pipelined: int = 16
    """Pipelined requests of one connection. Beyond that, the gateway reads no more until one is answered."""
    max_unsent_bytes: int = 160 * 1024 * 1024
    """Write buffer of one connection: the largest response and some notifications. Beyond that, it is closed."""
    max_all_unsent_bytes: int = 512 * 1024 * 1024
    """Write buffers of all connections. Beyond that, the slowest readers are disconnected."""
    unread_seconds: float = 60.0
    """How long a client with a full write buffer may read nothing before it is disconnected."""
    max_all_body_bytes: int = 512 * 1024 * 1024
    """Received bytes of unanswered large requests of all clients. Further requests get status 503."""
    max_client_body_bytes: int = 256 * 1024 * 1024
    """The same for one client, so that half of the budget is left for others."""
    max_queued_bytes: int = 512 * 1024 * 1024
    """Bytes in all conversations that are queued for servers, queued for evaluation, or part of incomplete messages.
    Beyond that, the conversations with the most bytes are ended."""
    max_queued_notifications: int = 1000
    """Messages of one conversation that are queued until the client opens its notification stream."""
    max_queued_notification_bytes: int = 4 * 1024 * 1024
    """Bytes of those messages."""
    head_seconds: float = 10.0
    """Time to send the head of a request, so that slow senders cannot occupy connections."""
    body_seconds: float = 60.0
    """Time to send the body of a request."""
    idle_connection_seconds: float = 75.0
    """How long an idle client connection is kept open."""
    connect_seconds: float = 10.0
    """Time to connect to a remote server."""
    idle_upstream_seconds: float = 4.0
    """How long an idle connection to a remote server is kept. Most servers close it after five seconds."""
    response_seconds: float = 300.0
    """Time for a server to answer a request. A progress notification restarts it."""
    merged_opening_seconds: float = 30.0
    """Time for a server behind `/mcp` to open a session, including its start."""
    merged_retry_seconds: float = 5.0
    """Pause before another attempt to open a session with a server behind `/mcp`."""
    merged_list_seconds: float = 10.0
    """Time for one list of a server behind `/mcp`. Most servers take a second or two, and clients wait about a minute
    for all lists. The merged list omits a slower server until its list arrives."""
    idle_seconds: float = 1800.0
    """How long an unused session and its process are kept."""
    ping_seconds: float = 15.0
    """Interval of comments on an idle event stream, so that proxies keep it open."""
    drain_seconds: float = 10.0
    """Time for open requests to end when the gateway shuts down."""
    first_backoff_seconds: float = 0.2
    """Pause before a process is restarted; doubled each time a process ends early."""
    max_backoff_seconds: float = 30.0
    stable_seconds: float = 10.0
    """A process that ends sooner than this ended early."""
    grace_seconds: float = 2.0
    """Time for a process to exit before it is killed, and for a remote server to accept the last notifications."""
    reload_seconds: float = 1.0
    """Interval at which lock, policy and tokens are checked for changes."""
    token_read_seconds: float = 5.0
    """Time to read the tokens. A database that takes longer counts as unavailable."""
    max_stderr_line_bytes: int = 4096
    """The part of each stderr line of a server that is logged, in bytes."""
