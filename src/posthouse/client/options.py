"""Options of a client: its bounds and its patience."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from posthouse.model.limits import MIB, STREAM_BUFFER_BYTES, STREAM_BUFFER_EVENTS


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """How a client behaves; the defaults suit an agent."""

    #: check id and signature of every event received
    is_verifying: bool = True
    #: file with the certificates of authorities to believe besides the system's
    tls_ca: Path | None = None
    #: speak to another machine without TLS; only inside a network that is trusted
    allow_plain: bool = False
    #: time for one attempt to connect and authenticate
    connect_timeout_s: float = 10.0
    #: time for one HTTP request
    request_timeout_s: float = 30.0
    #: time a publish waits for its answer, over reconnects and retries
    publish_timeout_s: float = 60.0
    #: longest wait between two attempts to reconnect
    reconnect_most_s: float = 30.0
    #: events sent and not answered; publish waits beyond it
    in_flight_events: int = 1_000
    #: bytes of events sent and not answered
    in_flight_bytes: int = 8 * MIB
    #: events a subscription holds for its reader; beyond it the relay is asked again later
    buffer_events: int = STREAM_BUFFER_EVENTS
    #: bytes of events a subscription holds
    buffer_bytes: int = STREAM_BUFFER_BYTES
    #: time between pings of a silent connection, to notice that it is gone
    heartbeat_s: float = 30.0
