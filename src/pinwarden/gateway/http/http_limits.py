"""Sizes, counts and times that the HTTP gateway enforces, each with the reason for its value."""

from __future__ import annotations

from pinwarden.core.record import Record
from pinwarden.gateway.session.deferred import RESPONSE_SECONDS


class HttpLimits(Record):
    """The limits of one gateway. Some limits can be set with options of ``pinwarden gateway``."""

    max_head_bytes: int = 32 * 1024
    """Maximum size of a request line with its headers. In practice it is below 4 KiB, even with a long token."""
    max_headers: int = 100
    """Maximum number of headers in one request or response."""
    max_upstream_head_bytes: int = 64 * 1024
    """Maximum size of the status line and headers of a server's response. In practice it is below 8 KiB."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Maximum size of one message of a client. Arguments rarely exceed a megabyte."""
    max_body_values: int = 1_000_000
    """Maximum number of JSON values in one message of a client (`Limits.max_values`). Parsing a million takes 0.1 s."""
    max_server_message_bytes: int = 128 * 1024 * 1024
    """Maximum size of one message of a server. Results with images or files in base64 have up to 50 MB."""
    max_bytes_at_once: int = 64 * 1024
    """Server messages up to this size are checked on the event loop, longer messages on a thread. Checking a list of
    5,000 tools takes a second, and other clients must not wait for it."""
    max_client_slow_messages: int = 64
    """Maximum number of one client's long messages that wait for a thread. Further messages get an error."""
    slow_message_seconds: float = 30.0
    """How long a message may wait for a thread before it gets an error. Clients wait about a minute."""
    max_messages_at_once: int = 16
    """Maximum number of one server's messages per iteration of the event loop. Each takes at least 0.1 ms."""
    max_connections: int = 2048
    """Maximum number of client connections. An idle connection takes a few kilobytes of memory."""
    max_upstream_connections: int = 512
    """Maximum number of connections to one remote server. Further requests are queued."""
    max_client_upstream_connections: int = 384
    """Maximum number of connections to one remote server for one client. The client's further requests are queued."""
    max_upstream_streams: int = 256
    """Maximum number of event streams from one remote server. The remaining connections are reserved for requests."""
    max_client_streams: int = 128
    """Maximum number of event streams from one remote server to one client. Further streams get an error."""
    max_sessions: int = 1000
    """Maximum number of sessions with a handshake. Each has its own process, so that clients never share state."""
    max_client_sessions: int = 200
    """Maximum number of sessions of one client. If the client opens another, its least recently used session ends."""
    max_processes: int = 256
    """Maximum number of server processes. At the limit, the client with the most processes loses one to a client with
    fewer."""
    share_processes: bool = True
    """Whether all clients share one process of a stateless server, if its capabilities allow that."""
    shared_ping_seconds: float = 10.0
    """Time for a shared process to respond to a ping after a request timed out. Without a response, it is replaced."""
    max_shared_in_flight: int = 64
    """Maximum number of one client's open requests in a shared process. The client's further requests are queued."""
    eviction_seconds: float = 10.0
    """How long a new process waits for an evicted one to end. The evicted one is killed after `grace_seconds`."""
    max_in_flight: int = 1000
    """Maximum number of open requests in one conversation. Further requests get an error."""
    max_pipelined: int = 16
    """Maximum number of pipelined requests. At the limit, the gateway reads no more until it has sent a response."""
    max_unsent_bytes: int = 160 * 1024 * 1024
    """Maximum bytes in the write buffer of one connection: the largest response and some notifications. A connection
    with more is closed."""
    max_all_unsent_bytes: int = 512 * 1024 * 1024
    """Maximum bytes in the write buffers of all connections. Above the limit, the slowest readers are disconnected."""
    unread_seconds: float = 60.0
    """How long a client with a full write buffer may read nothing before it is disconnected."""
    max_all_body_bytes: int = 512 * 1024 * 1024
    """Maximum bytes of all large requests without a response. Further large requests get status 503."""
    max_client_body_bytes: int = 256 * 1024 * 1024
    """Maximum bytes of one client's large requests without a response. Half of the budget is left for other clients."""
    max_queued_bytes: int = 512 * 1024 * 1024
    """Maximum bytes that are queued for servers, wait for a check, or belong to incomplete messages. Above the limit,
    the gateway ends the conversation with the most queued bytes."""
    max_queued_notifications: int = 1000
    """Maximum number of one conversation's messages that are queued until the client opens its notification stream."""
    max_queued_notification_bytes: int = 4 * 1024 * 1024
    """Maximum bytes of the messages that are queued until the client opens its notification stream."""
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
    response_seconds: float = RESPONSE_SECONDS
    """Time for a server to respond to a request. A progress notification restarts the timeout."""
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
    """Interval of the comments that the gateway sends on an idle event stream, so that proxies keep it open."""
    drain_seconds: float = 10.0
    """Time for open requests to end when the gateway shuts down."""
    first_backoff_seconds: float = 0.2
    """Pause before a process is restarted. The pause doubles each time a process exits early."""
    max_backoff_seconds: float = 30.0
    """The longest pause before a process is restarted."""
    max_awaited_backoff_seconds: float = 3.0
    """The longest pause that a client waits for. With a longer one, its requests are refused at once."""
    stable_seconds: float = 10.0
    """A process that exits within this time after its start counts as exited early."""
    grace_seconds: float = 2.0
    """Time for a process to exit before it is killed, and for a remote server to accept the last notifications."""
    reload_seconds: float = 1.0
    """Interval at which lock, policy and tokens are checked for changes."""
    token_read_seconds: float = 5.0
    """Time to read the tokens. If the database takes longer, it counts as unavailable."""
    max_stderr_line_bytes: int = 4096
    """Maximum bytes of a server's stderr line in the gateway's log. The remaining bytes are dropped."""
