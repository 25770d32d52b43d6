from __future__ import annotations

import asyncio
import json

import pytest

from posthouse.client.stream.connection import FRAME_BYTES, FRAME_COMMANDS, WriteBuffer
from tests.client.waiting import until


class Socket:
    """Takes frames while it is open."""

    def __init__(self) -> None:
        self.frames: list[list[object]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def send(self, frame: bytes) -> None:
        await self.is_open.wait()
        self.frames.append(json.loads(frame))


async def test_commands_of_one_loop_iteration_make_one_frame_and_a_single_one_is_not_wrapped() -> None:
    socket = Socket()
    outgoing = WriteBuffer(socket.send)
    sending = asyncio.create_task(outgoing.run())
    outgoing.put(b'["A"]')
    await until(lambda: len(socket.frames) == 1)
    outgoing.put(b'["B"]')
    outgoing.put(b'["C"]')
    await until(lambda: len(socket.frames) == 2)
    assert socket.frames == [["A"], [["B"], ["C"]]]
    sending.cancel()


async def test_commands_added_while_the_socket_is_full_leave_together() -> None:
    socket = Socket()
    socket.is_open.clear()
    outgoing = WriteBuffer(socket.send)
    sending = asyncio.create_task(outgoing.run())
    outgoing.put(b'["first"]')
    await asyncio.sleep(0)
    for _ in range(10):
        outgoing.put(b'["later"]')
        await asyncio.sleep(0)
    socket.is_open.set()
    await until(lambda: sum(map(len, socket.frames)) >= 11)
    assert [len(frame) for frame in socket.frames] == [1, 10]
    sending.cancel()


async def test_frames_are_bounded_in_commands_and_bytes_and_keep_the_order() -> None:
    socket = Socket()
    outgoing = WriteBuffer(socket.send)
    big = json.dumps(["x" * (FRAME_BYTES // 2)]).encode()
    for number in range(FRAME_COMMANDS + 1):
        outgoing.put(b"[%d]" % number)
    outgoing.put(big)
    outgoing.put(big)
    sending = asyncio.create_task(outgoing.run())
    await until(lambda: outgoing.frames == 3)
    assert socket.frames[0] == [[number] for number in range(FRAME_COMMANDS)]
    assert all(len(json.dumps(frame)) < FRAME_BYTES + len(big) for frame in socket.frames)
    sending.cancel()


async def test_failure_of_the_socket_ends_sending() -> None:
    async def broken(_: bytes) -> None:
        raise ConnectionResetError

    outgoing = WriteBuffer(broken)
    outgoing.put(b"[1]")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(outgoing.run(), 20)
