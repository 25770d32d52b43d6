"""The server keeps the plans of statements while tables grow: rows are found by key from the first one on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psycopg
import pytest

from tests.relay.both_stores import each_store, store_of  # noqa: F401 - a fixture
from tests.relay.messages.town import some, town

FIRST = 12  # more than the executions after which PostgreSQL keeps a plan
GROUPS, GROUP = 8, 50
PATIENCE_S = 20
_COUNTS = "SELECT relname, n_tup_ins, seq_tup_read FROM pg_stat_user_tables"


def scanned_rows(url: str, events: int) -> dict[str, int]:
    """Return how many rows each scan of a whole table has read, once the server has counted so many events."""
    with psycopg.connect(url, autocommit=True) as connection:
        until = time.monotonic() + PATIENCE_S
        while True:
            found = {name: (inserted, scanned) for name, inserted, scanned in connection.execute(_COUNTS)}
            if found["events"][0] >= events or time.monotonic() > until:
                return {name: scanned for name, (_inserted, scanned) in found.items()}
            time.sleep(0.05)


@pytest.mark.parametrize("each_store", ["postgresql"], indirect=True)
@pytest.mark.usefixtures("each_store")
async def test_no_table_is_read_whole_for_messages_although_it_was_small_when_statements_were_planned(
    tmp_path: Path,
) -> None:
    url = store_of(tmp_path)
    assert url is not None
    async with town(tmp_path) as place:
        alice, bob = await place.client(), await place.client()
        async with await bob.receive() as mailbox:
            for number in range(FIRST):
                await alice.send(bob.key.node, f"first {number}")
                await some(mailbox, 1)
        before = await asyncio.to_thread(scanned_rows, url, FIRST)
        for number in range(GROUPS):
            await alice.publish_many([await alice.compose(bob.key.node, f"{number} {each}") for each in range(GROUP)])
        async with await bob.receive() as mailbox:
            await some(mailbox, GROUPS * GROUP)
        after = await asyncio.to_thread(scanned_rows, url, FIRST + GROUPS * GROUP)
    read = {name: after[name] - before[name] for name in after}
    assert {name: rows for name, rows in read.items() if rows >= GROUPS * GROUP} == {}
