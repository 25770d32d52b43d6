"""Unsent bytes of all connections have one bound, and the slowest reader is dropped first."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from posthouse.http.outbound import OutboundAccount
from tests.client.certificates import Certificate, make_certificate


class Peer:
    """A transport whose peer takes bytes when the test says so."""

    def __init__(self) -> None:
        self.unsent = 0
        self.is_dropped = False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.is_dropped

    def get_extra_info(self, _name: str) -> None:
        return None

    def abort(self) -> None:
        self.is_dropped = True


class Crowd:
    """Peers of one account, in a time that the test sets."""

    def __init__(self, max_bytes: int) -> None:
        self.now_s = 0.0
        self.account = OutboundAccount(max_bytes, lambda: self.now_s)

    def write(self, peer: Any, size: int, at_s: float) -> None:
        self.now_s = at_s
        peer.unsent += size
        self.account.open(peer).wrote(size)


def test_the_reader_whose_oldest_byte_waits_longest_is_dropped_first() -> None:
    crowd = Crowd(1_000)
    stalled, trickling, busy = Peer(), Peer(), Peer()
    crowd.write(stalled, 300, at_s=0)
    crowd.write(trickling, 300, at_s=1)
    crowd.write(busy, 300, at_s=1)
    trickling.unsent -= 1
    busy.unsent = 0
    crowd.write(busy, 390, at_s=2)
    assert not any(peer.is_dropped for peer in (stalled, trickling, busy))
    crowd.write(busy, 100, at_s=3)  # 300 + 299 + 490: above the bound
    assert (stalled.is_dropped, trickling.is_dropped, busy.is_dropped) == (True, False, False)
    crowd.write(busy, 300, at_s=4)
    assert (trickling.is_dropped, busy.is_dropped) == (True, False)
    assert crowd.account.dropped == 2
    assert crowd.account.measure() == busy.unsent


def test_bytes_that_peers_have_taken_do_not_count() -> None:
    crowd = Crowd(1_000)
    reading = [Peer() for _ in range(10)]
    for second in range(100):
        for peer in reading:
            crowd.write(peer, 90, at_s=second)
            peer.unsent = 0
    assert not any(peer.is_dropped for peer in reading)
    assert crowd.account.measure() == 0


def test_bytes_held_for_a_reader_count_like_unsent_ones() -> None:
    crowd = Crowd(1_000)
    slow, other = Peer(), Peer()
    crowd.write(slow, 10, at_s=0)
    crowd.account.open(slow).hold(900)  # type: ignore[arg-type]
    crowd.write(other, 200, at_s=1)
    assert (slow.is_dropped, other.is_dropped) == (True, False)


def test_a_connection_that_has_ended_is_forgotten() -> None:
    crowd = Crowd(1_000)
    ended, other = Peer(), Peer()
    crowd.write(ended, 900, at_s=0)
    crowd.account.close(ended)  # type: ignore[arg-type]
    crowd.write(other, 900, at_s=1)
    assert not other.is_dropped
    assert crowd.account.measure() == 900


def test_bytes_released_after_the_reader_was_dropped_make_no_room_twice() -> None:
    crowd = Crowd(1_000)
    slow, others = Peer(), [Peer() for _ in range(3)]
    crowd.write(slow, 10, at_s=0)
    outlet = crowd.account.open(slow)  # type: ignore[arg-type]
    outlet.hold(900)
    for second, other in enumerate(others, start=1):
        crowd.write(other, 400, at_s=second)
        outlet.hold(-300)  # the task of the dropped connection ends
    assert [peer.is_dropped for peer in (slow, *others)] == [True, True, False, False]


def test_reader_that_falls_behind_and_catches_up_again_and_again_leaves_nothing_behind() -> None:
    crowd = Crowd(1_000_000)
    empties, lags = Peer(), Peer()
    for second in range(1_000):
        crowd.write(empties, 10, at_s=second)
        empties.unsent = 0
        crowd.write(lags, 10, at_s=second)
        lags.unsent = 5
    assert len(crowd.account.open(empties)._marks) <= 1  # type: ignore[arg-type]
    assert len(crowd.account.open(lags)._marks) <= 2  # type: ignore[arg-type]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_bytes_that_tls_has_encrypted_count(tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_write_to_a_peer_that_does_not_read(make_certificate(tmp_path, "127.0.0.1")))


async def _write_to_a_peer_that_does_not_read(certificate: Certificate) -> None:
    ours, theirs = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    ours.load_cert_chain(certificate.cert, certificate.key)
    theirs.check_hostname, theirs.verify_mode = False, ssl.CERT_NONE
    accepted: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _reader, writer: accepted.put_nowait(writer), "127.0.0.1", ssl=ours)
    port = server.sockets[0].getsockname()[1]
    _, peer = await asyncio.open_connection("127.0.0.1", port, ssl=theirs, limit=1_024)  # reads no more than that
    writer = await accepted.get()
    account, size = OutboundAccount(1 << 30), 16 * 1024 * 1024  # more than the kernel takes
    transport = cast(asyncio.Transport, writer.transport)
    try:
        transport.write(b"x" * size)
        account.open(transport).wrote(size)
        assert account.measure() > size // 2
    finally:
        for each in (peer, writer):
            each.transport.abort()
        server.close()
