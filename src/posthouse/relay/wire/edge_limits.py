"""Bounds of one relay process: sizes, counts and times of requests and streams.

Every bound is enforced where bytes arrive; together they bound the memory that clients can make the relay use. Where
the protocol names a value, the default comes from posthouse.model.limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posthouse.model import limits


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Bounds of requests and streams."""

    #: of a list of events; other bodies may have `small_body_bytes`
    body_bytes: int = 8 * limits.MIB
    small_body_bytes: int = limits.EVENT_MAX_JSON_BYTES + 64 * limits.KIB
    #: of the request line, and of each header; filters with 500 ids in a query need 33 KB
    header_bytes: int = 64 * limits.KIB
    headers: int = 64
    #: of a request, and of a stream's frame, before authentication; a proof has about 600 bytes
    stranger_body_bytes: int = 256 * limits.KIB
    stranger_frame_bytes: int = 256 * limits.KIB
    connections: int = 4_096
    #: connections of one address whose caller has proved the key of a member, and those where it has not
    connections_per_address: int = 2_048
    strangers_per_address: int = 256
    #: connections of one member, whatever their address
    connections_per_node: int = 1_024
    #: from the opening of a stream to its AUTH
    login_s: float = 10.0
    requests_running: int = 512
    #: requests of one address whose body is not complete, and the bytes in all such bodies of strangers
    unfinished_per_address: int = 64
    unfinished_bytes: int = 64 * limits.MIB
    #: first byte to last header; a slower client holds a connection without using it (slowloris)
    header_s: float = 10.0
    body_s: float = 30.0
    request_s: float = 60.0
    keepalive_s: float = 75.0
    #: how long running requests may take after the relay was asked to stop
    stop_s: float = 5.0

    frame_bytes: int = 4 * limits.MIB
    commands_per_frame: int = 1_000
    #: commands other than events; the rate of their key applies to events
    commands_per_s: int = 200
    commands_burst: int = 2_000
    #: refused frames in a row after which a connection is closed
    faults_per_connection: int = 50
    events_in_flight: int = 1_024
    subscriptions_per_connection: int = 1_000
    #: values in all filters of all subscriptions of a connection; bounds its part of the live index
    filter_values_per_connection: int = 20_000
    buffer_events: int = limits.STREAM_BUFFER_EVENTS
    buffer_bytes: int = limits.STREAM_BUFFER_BYTES
    #: unsent bytes of all connections together; above it the slowest readers are dropped
    outbound_bytes: int = limits.OUTBOUND_MAX_BYTES
    ping_s: float = float(limits.STREAM_PING_S)
    #: a peer that neither answers a ping nor reads for this long counts as gone
    pong_s: float = 10.0
    #: of one frame with stored events: large enough to be fast, small enough to share the socket
    stored_frame_bytes: int = 256 * limits.KIB
    #: of stored events that one stream holds in memory while its reader is slow
    stored_page_bytes: int = 1 * limits.MIB
    #: COUNT and LOCK list without an answer; one of them runs at a time
    reads_per_connection: int = 16


DEFAULT_LIMITS = EdgeLimits()


class StrangersParser:
    """Wraps the library's parser, which would accept frames of strangers as large as those of members."""

    def __init__(self, parser: Any, max_bytes: int, on_exceeded: Callable[[], None]) -> None:
        self.parser = parser
        self.waiting_bytes = 0
        self._max_bytes = max_bytes
        self._on_exceeded = on_exceeded

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass data on, unless too much waits already."""
        self.waiting_bytes += len(data)
        if self.waiting_bytes > self._max_bytes:
            self._on_exceeded()
            return False, b""
        result: tuple[bool, bytes] = self.parser.feed_data(data)
        return result

    def feed_eof(self) -> None:
        """Pass on the end of the data."""
        self.parser.feed_eof()
