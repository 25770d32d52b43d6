from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.raw_stream import RawStream, open_raw
from posthouse.keys import NodeKey
from tests.client.house import open_house

MARKER = b'["OK",'


def counting() -> RawStream:
    stream = RawStream(MARKER)
    stream._greeting = None
    return stream


@given(st.lists(st.sampled_from([MARKER, b"x", b'["O', b'K",', b"["]), max_size=30), st.lists(st.integers(1, 9)))
def test_markers_are_counted_wherever_the_bytes_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    stream, position = counting(), 0
    for size in cuts:
        stream.data_received(data[position : position + size])
        position += size
    stream.data_received(data[position:])
    assert stream.count == data.count(MARKER)


async def test_raw_client_authenticates_and_counts_answers_of_a_real_relay(tmp_path: Path) -> None:
    from bench.raw_stream import ACCEPTED, EventSource, Publisher

    async with open_house(tmp_path) as house:
        place, source = house.settings.listen, EventSource()
        publisher = Publisher(await open_raw(place.host, place.port, source.key, ACCEPTED), source)
        assert await publisher.rate(source.commands(100), 64) > 0
        reader = house.client()
        assert await reader.count({"authors": [source.key.node]}) == 100
        publisher.close()


async def test_closed_stream_is_an_error_and_not_a_wait(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        place = house.settings.listen
        stream = await open_raw(place.host, place.port, NodeKey.generate(), MARKER)
        await house.down()
        with pytest.raises(ConnectionError):
            await stream.wait_count(1)
