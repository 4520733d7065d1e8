"""How much one client or server may ask of the HTTP gateway, with the reason beside each number."""

from __future__ import annotations

from pinwarden.core.record import Record


class HttpLimits(Record):
    """Bounds on connections, messages, waits and memory."""

    max_head_bytes: int = 32 * 1024
    """Request line and headers. Real ones are below 4 KiB, also with a long token."""
    max_headers: int = 100
    max_upstream_head_bytes: int = 64 * 1024
    """Of the head of an answer, and of whatever comes between two parts of its body. Real heads are below 8 KiB."""
    max_body_bytes: int = 32 * 1024 * 1024
    """One message of a client. Arguments are seldom above a megabyte."""
    max_body_values: int = 1_000_000
    """What the values of such a message may weigh (`Limits.max_values`). It is read at once, in a tenth of a second."""
    max_answer_bytes: int = 128 * 1024 * 1024
    """One message of a server. Results of 50 MB occur: images and files as base64."""
    max_bytes_at_once: int = 64 * 1024
    """Of a server's message that is judged between two looks at the sockets. What is longer is judged on a thread: a
    list of 5,000 tools takes a second, and nobody else is to wait for that."""
    max_client_judging: int = 64
    """Long messages of one client that wait to be read or judged. More are answered with an error, or with 503."""
    judging_wait_seconds: float = 30.0
    """For which such a message waits. Then it is answered with the same error: clients wait about a minute."""
    max_frames_at_once: int = 16
    """Messages of one server between two looks at the sockets. Each takes a tenth of a millisecond, or several."""
    max_connections: int = 2048
    """Of clients. Each costs a few kilobytes while it is idle."""
    max_upstream_connections: int = 512
    """To one remote server. More requests than that wait in line."""
    max_client_upstream_connections: int = 384
    """Of these, for one client. Its further requests wait until one of its own is answered, and nobody else's do."""
    max_upstream_streams: int = 256
    """Of these, for streams, which may stay open for ever. The others are left for requests."""
    max_client_streams: int = 128
    """Of these streams, for one client. One more is answered with an error at once."""
    max_sessions: int = 1000
    """Handshake-era sessions in all. Those to a command have a process each, so that two clients never share state."""
    max_client_sessions: int = 200
    """Of one client. A client that opens more loses the one that it has not used for longest, and nobody else's."""
    max_children: int = 256
    """Processes in all. When there are so many, who has most of them loses one to a client that has fewer."""
    share_processes: bool = True
    """Whether all clients share one process of a server whose protocol allows that."""
    shared_ping_seconds: float = 10.0
    """For a shared process to answer a ping, after it answered no request in time. Then it is replaced."""
    max_shared_in_flight: int = 64
    """Requests of one client that such a process works on at once. Further ones wait, and those of others do not."""
    slot_seconds: float = 10.0
    """For that one to end; it is killed after `grace_seconds`."""
    max_in_flight: int = 1000
    """Unanswered requests of one conversation."""
    max_pipelined: int = 16
    """Requests that one connection may send ahead; after that it is not read from until one is answered."""
    max_unsent_bytes: int = 160 * 1024 * 1024
    """Of one connection whose reader is slow: one largest answer and some notifications. Then it is cut."""
    max_all_unsent_bytes: int = 512 * 1024 * 1024
    """Of all connections together. Beyond that those are cut that read slowest."""
    unread_seconds: float = 60.0
    """For which a connection may read nothing of what waits for it."""
    max_all_body_bytes: int = 512 * 1024 * 1024
    """Of what came of the large requests of all connections together, until they are answered. More is turned away."""
    max_client_body_bytes: int = 256 * 1024 * 1024
    """Of that, for one client: half of it is always left for the others."""
    max_all_waiting_bytes: int = 512 * 1024 * 1024
    """Of what waits for servers to read it, for lists to be judged, and for the end of messages that servers began, in
    all conversations together. Beyond that those are ended that hold most."""
    max_waiting_frames: int = 1000
    """Messages of a server that wait for a client to open its stream."""
    max_waiting_bytes: int = 4 * 1024 * 1024
    """Of these messages, in one conversation."""
    head_seconds: float = 10.0
    """For the whole head of a request, so that slow senders cannot hold connections."""
    body_seconds: float = 60.0
    """For the body of a request."""
    idle_seconds: float = 75.0
    """For the next request on a kept connection."""
    connect_seconds: float = 10.0
    """To reach a remote server."""
    idle_upstream_seconds: float = 4.0
    """For which a connection to a remote server is kept; common servers close theirs after five seconds."""
    answer_seconds: float = 300.0
    """For an answer, or for anything that shows that the server is at work on it: progress begins the wait anew."""
    merged_opening_seconds: float = 30.0
    """On the address of all servers, for one that begins: it may have to be started first."""
    merged_again_seconds: float = 5.0
    """Between tries to begin with a server that did not."""
    merged_list_seconds: float = 10.0
    """For the lists of one of them. Real servers take a second or two, and clients wait about a minute for all lists;
    one that takes longer is left out until it has listed."""
    session_seconds: float = 1800.0
    """For which an unused session is kept, with its process."""
    ping_seconds: float = 15.0
    """Between comments on a quiet stream, which keep it open through proxies."""
    drain_seconds: float = 10.0
    """For requests in flight when the gateway is asked to end."""
    first_backoff_seconds: float = 0.2
    """Before a command that ended is started again; doubled each time that it ends early."""
    longest_backoff_seconds: float = 30.0
    stable_seconds: float = 10.0
    """A command that ran for so long did not fail at its start."""
    grace_seconds: float = 2.0
    """For a command to end by itself, and for a remote server to take the last notifications."""
    reload_seconds: float = 1.0
    """Between looks at the lock and the policy."""
    tokens_seconds: float = 5.0
    """For the tokens to be read. A database that takes longer is taken for away, as whoever asks waits for nobody."""
    kept_stderr_bytes: int = 4096
    """Of the last line of a command's standard error."""
