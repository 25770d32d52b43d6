"""The archive prunes what the lake holds, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from posthouse.client import Client
from posthouse.client.trust.pins import Pins
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError
from posthouse.pipeline import archive_history as archiving
from posthouse.pipeline.archive_history import archive
from posthouse.pipeline.epochs import ALL_LIVE, Epoch, Segment, segments_of
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.lake.lake import BronzeScan, RowFilter
from posthouse.pipeline.lake.lookup import Lookup
from posthouse.relay.ops.maintenance import backup_relay, restore_relay
from tests.pipeline.filled_lake import Row, fill_lake
from tests.relay.edge import Author, Edge
from tests.relay.messages.checked import checked
from tests.relay.messages.correspondents import direct, send

NOW_NS = 2**62  # everything is older than that
FILE = "relay.db"


@asynccontextmanager
async def administrator(edge: Edge, tmp_path: Path) -> AsyncIterator[Client]:
    async with Client(edge.url, edge.admin.key, pins=Pins(tmp_path / "pins.json")) as client:
        yield client


@pytest.fixture(params=["directory", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake" if request.param == "directory" else f"{request.getfixturevalue('bucket')}/lake")


async def test_what_the_lake_holds_is_pruned_and_the_rest_is_not(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "RANGE_RECORDS", 7)
    alice, bob = Author(), Author()
    async with checked(tmp_path / "relay") as edge:
        events = [alice.event(1, str(number)) for number in range(40)]
        seqs = await edge.publish(*events)
        waiting = direct(alice, bob, "waiting")
        await send(edge, waiting)
        fill_lake(lake, tmp_path / "relay" / FILE, rows_per_file=9)
        late = alice.event(1, "after the lake")
        (late_seq,) = await edge.publish(late)
        parts: list[int] = []
        async with administrator(edge, tmp_path) as client:
            done = await archive(client, lake, NOW_NS, lambda part: parts.append(part.pruned))
            assert (done.pruned, done.oldest_seq) == (late_seq - 1, late_seq)
            assert max(parts) == 7
            assert done.emptied == len(seqs)
            assert [each.event.content for each in (await client.query({"kinds": [1]})).events] == ["after the lake"]
            again = await archive(client, lake, NOW_NS)
            assert (again.pruned, again.emptied) == (0, 0)
        token = await edge.token(bob)
        assert (await edge.get(f"/v1/events/{waiting['id']}", token)).value["content"] == "waiting"
    ((_seq, found),) = Lookup(lake).messages("main", lambda _event: True, "waiting", before_seq=None)
    assert found.id == waiting["id"]


async def test_content_that_the_relay_swept_or_erased_does_not_stop_the_archive(tmp_path: Path) -> None:
    alice, lake = Author(), Lake(tmp_path / "lake")
    async with checked(tmp_path / "relay") as edge:
        token = await edge.token(edge.admin)
        await edge.publish(*[alice.event(1, f"archived {number}") for number in range(3)])
        fill_lake(lake, tmp_path / "relay" / FILE)
        limits = {"limits": {"max_events": 4, "on_full": "drop_oldest"}}
        assert (await edge.post("/v1/meshes/main/limits", limits, token)).status == 200
        early = [alice.event(1, f"swept before the lake had it {number}") for number in range(4)]
        await edge.publish(*early)
        await edge.publish(*[alice.event(1, f"late {number}") for number in range(3)])
        await edge.publish(alice.event(5, "", [("e", early[3]["id"])]))
        newer = Lake(tmp_path / "newer")
        fill_lake(newer, tmp_path / "relay" / FILE)
        types = [row["type"] for row in BronzeScan(newer, "bronze_journal").rows(RowFilter(), ("type",))]
        assert {"content.swept", "content.erased"} <= set(types)
        head = (await edge.server.context.engine.store.extent()).head
        async with administrator(edge, tmp_path) as client:
            assert (await archive(client, newer, NOW_NS)).oldest_seq == head + 1


async def test_what_is_young_stays(tmp_path: Path) -> None:
    alice, lake = Author(), Lake(tmp_path / "lake")
    async with checked(tmp_path / "relay") as edge:
        await edge.publish(*[alice.event(1) for _ in range(5)])
        fill_lake(lake, tmp_path / "relay" / FILE)
        async with administrator(edge, tmp_path) as client:
            assert (await archive(client, lake, 0)).pruned == 0
            records = await edge.server.context.engine.store.journal(0, 100)
            third = records[2].at_ns
            done = await archive(client, lake, third)
            assert done.pruned == len([record for record in records if record.at_ns < third])


@pytest.mark.parametrize("table", ["bronze_journal", "bronze_events"])
@pytest.mark.parametrize("what", ["changed", "missing"])
async def test_lake_that_is_not_equal_prunes_nothing(tmp_path: Path, table: str, what: str) -> None:
    def change(found: str, row: Row) -> Row | None:
        if found != table or row["seq"] != 6:
            return row
        field = "event" if table == "bronze_events" else "body"
        return None if what == "missing" else row | {field: row[field].replace("abc", "abd").replace("size", "sizf")}

    alice = Author()
    async with checked(tmp_path / "relay") as edge:
        await edge.publish(*[alice.event(1, "abc") for _ in range(9)])
        store = edge.server.context.engine.store
        fill_lake(Lake(tmp_path / "false"), tmp_path / "relay" / FILE, change=change)
        async with administrator(edge, tmp_path) as client:
            if (table, what) == ("bronze_journal", "missing"):  # a gap: what lies before it is there
                assert (await archive(client, Lake(tmp_path / "false"), NOW_NS)).oldest_seq == 6
                return
            with pytest.raises(PosthouseError) as raised:
                await archive(client, Lake(tmp_path / "false"), NOW_NS)
            assert raised.value.code == "archive_differs"
            assert (await store.extent()).pruned_through == 0
            fill_lake(Lake(tmp_path / "true"), tmp_path / "relay" / FILE)
            assert (await archive(client, Lake(tmp_path / "true"), NOW_NS)).pruned > 9


async def test_file_of_the_lake_that_is_cut_off_or_missing_prunes_nothing(tmp_path: Path) -> None:
    alice, lake = Author(), Lake(tmp_path / "lake")
    async with checked(tmp_path / "relay") as edge:
        await edge.publish(*[alice.event(1, "abc") for _ in range(5)])
        fill_lake(lake, tmp_path / "relay" / FILE)
        (file,) = (tmp_path / "lake" / "bronze_events").glob("*.parquet")
        whole = file.read_bytes()
        for damaged in (whole[:-100], None, whole[:100] + bytes(200) + whole[300:]):
            file.unlink(missing_ok=True)
            if damaged is not None:
                file.write_bytes(damaged)
            async with administrator(edge, tmp_path) as client:
                with pytest.raises(PosthouseError) as raised:
                    await archive(client, lake, NOW_NS)
            assert raised.value.code in ("lake_damaged", "archive_differs")
        assert (await edge.server.context.engine.store.extent()).pruned_through == 0


async def test_lake_of_another_history_is_refused(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    async with checked(tmp_path / "other"):
        fill_lake(lake, tmp_path / "other" / FILE)
    async with checked(tmp_path / "relay") as edge, administrator(edge, tmp_path) as client:
        with pytest.raises(PosthouseError) as raised:
            await archive(client, lake, NOW_NS)
        assert raised.value.code == "archive_unknown_history"


async def test_restored_relay_is_archived_over_the_fork(tmp_path: Path) -> None:
    alice, lake = Author(), Lake(tmp_path / "lake")
    path = tmp_path / "relay" / FILE
    async with checked(tmp_path / "relay") as edge:
        await edge.publish(*[alice.event(1) for _ in range(10)])
        backup_relay(path, tmp_path / "backup.db")
        await edge.publish(*[alice.event(1) for _ in range(5)])
        fill_lake(lake, path)
    restore_relay(tmp_path / "backup.db", path, system_clock())
    async with checked(tmp_path / "relay") as edge:
        await edge.publish(*[alice.event(1) for _ in range(3)])
        fill_lake(lake, path)
        head = (await edge.server.context.engine.store.extent()).head
        async with administrator(edge, tmp_path) as client:
            done = await archive(client, lake, NOW_NS)
        assert (done.pruned, done.oldest_seq) == (head, head + 1)


def test_spans_follow_the_forks() -> None:
    def epoch(name: str, parent: str | None, fork_seq: int) -> Epoch:
        return Epoch(name, parent, fork_seq, "relay", "", 0)

    epochs = [epoch("a", None, 0), epoch("b", "a", 10), epoch("c", "b", 4), epoch("d", "c", 20)]
    assert segments_of(epochs, "a") == [Segment("a", 0, ALL_LIVE)]
    assert segments_of(epochs, "b") == [Segment("a", 0, 10), Segment("b", 10, ALL_LIVE)]
    assert segments_of(epochs, "d") == [Segment("a", 0, 4), Segment("c", 4, 20), Segment("d", 20, ALL_LIVE)]
