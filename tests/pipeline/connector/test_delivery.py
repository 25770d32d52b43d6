"""The driver's part of the sink delivers a row of a run once, even if the run is repeated."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.client.trust.signing import Signer
from posthouse.keys import NodeKey, open_sealed
from posthouse.model.clock import FakeClock, system_clock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.data_source import SinkWriter, Staged, pack, unpack
from posthouse.pipeline.connector.delivery import EventBuilder, deliver, message_id_of
from posthouse.pipeline.connector.sink_rows import SinkOptions, SinkRow, check_columns, join_rows, read_row
from tests.pipeline.relay import Post, post_office


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    with post_office(tmp_path) as running:
        yield running


async def test_rows_sent_again_with_their_run_id_are_delivered_once(post: Post) -> None:
    await post.open_topic("news")
    rows = [SinkRow(f"k{number}", f"body {number}", to="#news") for number in range(5)]
    rows += [SinkRow("direct", "for you", to=post.reader.node, meta='{"a":1}')]
    first = await deliver(rows, post.options())
    again = await deliver(rows, post.options())
    assert (first.rows, first.duplicates) == (6, 0)
    assert (again.rows, again.duplicates) == (6, 6)
    assert sorted(await post.read(6)) == sorted(row.body for row in rows)


async def test_another_run_is_another_message(post: Post) -> None:
    await post.open_topic("news")
    rows = [SinkRow("k", "body", to="#news")]
    for run in ("monday", "tuesday"):
        assert (await deliver(rows, post.options(run))).duplicates == 0
    assert await post.read(2) == ["body", "body"]


async def test_row_that_changed_under_its_key_is_refused_and_not_swallowed(post: Post) -> None:
    await post.open_topic("news")
    for to in ("#news", post.reader.node):
        await deliver([SinkRow(f"k {to}", "one", to=to)], post.options())
        with pytest.raises(PosthouseError) as raised:
            await deliver([SinkRow(f"k {to}", "another", to=to)], post.options())
        assert raised.value.code == "sink_refused"
        assert raised.value.fields["reason"] == "idempotency_key_reused"
    assert await post.read(2) == ["one", "one"]


async def test_addressable_event_sent_again_is_the_same_event(post: Post) -> None:
    rows = [SinkRow("s", "{}", kind=30_001, tags='[["d","stats/x"]]', created_at_ns=system_clock().wall_ns())]
    assert (await deliver(rows, post.options())).duplicates == 0
    assert (await deliver(rows, post.options("later"))).duplicates == 1


def test_sealed_bodies_are_the_same_each_time_and_open_for_their_reader() -> None:
    sender, reader = NodeKey.generate(), NodeKey.generate()
    builder = EventBuilder(Signer(sender, FakeClock()), FakeClock(), "run", "main")
    row = SinkRow("k", "secret", to=reader.node)
    first, again = (builder.event(row, reader.node) for _ in range(2))
    other = builder.event(SinkRow("k", "other!", to=reader.node), reader.node)
    assert first.content == again.content != other.content
    assert first.value("enc") == "box" and first.value("p") == reader.node
    assert open_sealed(reader, sender.node, "box", first.content) == b"secret"
    assert first.content[:20] != other.content[:20], "two texts have one nonce"


def test_ids_do_not_mix_run_and_row() -> None:
    assert message_id_of("a", "bc") != message_id_of("ab", "c")
    assert message_id_of("a", "b") == message_id_of("a", "b")


def test_rows_of_a_task_that_ran_twice_are_one() -> None:
    rows = [read_row({"row_key": "b", "body": "1", "to": "#t"}), read_row({"row_key": "a", "body": "2", "to": "#t"})]
    packed = pack(iter(rows))
    assert join_rows([*unpack(packed), *unpack(packed)]) == [rows[1], rows[0]]
    with pytest.raises(PosthouseError) as raised:
        join_rows([*rows, SinkRow("a", "another", to="#t")])
    assert raised.value.code == "sink_rows_invalid"


@pytest.mark.parametrize(
    "values",
    [
        {"row_key": "a", "body": "x"},
        {"row_key": "a", "body": "x", "kind": 30_001},
        {"row_key": 1, "body": "x", "to": "#t"},
        {"body": "x", "to": "#t"},
        {"row_key": "a", "body": "x", "to": "#t", "colour": "red"},
    ],
)
def test_row_that_cannot_be_sent_is_refused_where_it_is_read(values: dict[str, object]) -> None:
    with pytest.raises(PosthouseError) as raised:
        read_row(values)
    assert raised.value.code == "sink_rows_invalid"


def test_columns_and_options_are_checked_first() -> None:
    for names in (["row_key"], ["body"], ["row_key", "body", "colour"]):
        with pytest.raises(PosthouseError, match="column"):
            check_columns(names)
    for options in ({"relay": "http://x"}, {"run_id": "r"}, {"relay": "http://x", "run_id": "r" * 256}):
        with pytest.raises(PosthouseError) as raised:
            SinkOptions.of(options)
        assert raised.value.code == "sink_option_invalid"


def test_workers_load_the_sink_without_sqlite() -> None:
    code = (
        "import sys, posthouse.pipeline.connector.data_source, posthouse.pipeline.connector.delivery\n"
        "assert 'apsw' not in sys.modules and 'sqlite3' not in sys.modules, sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_goes_to_executors_holds_no_key(tmp_path: Path, post: Post) -> None:
    writer = SinkWriter(SinkOptions.of(post.options().as_strings()))
    data = pickle.dumps(writer) + pickle.dumps(Staged(pack(iter([SinkRow("a", "b", to="#t")]))))
    seed = post.key.reveal_seed()
    assert seed not in data and seed.hex().encode() not in data
    assert b"sender.json" in data
    with pytest.raises(TypeError):
        pickle.dumps(post.key)
