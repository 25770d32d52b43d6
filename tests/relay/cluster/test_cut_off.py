"""A relay that is cut from the database serves nothing that could be old, and goes on when it is back."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.postgresql.cut_proxy import cut_proxy
from tests.postgresql.server import PostgresServer
from tests.relay.cluster.relays import cluster_of, relays
from tests.relay.edge import Author
from tests.relay.messages.correspondents import direct, reading, send
from tests.relay.messages.waiting import eventually

GRANT_S = 5.0  # from the loss of the leader to the next grant


async def test_relay_that_cannot_see_the_head_serves_no_reads_and_ends_its_streams(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:  # short, because the path of a socket is
        proxied = database.replace(str(postgres.folder), folder)
        async with (
            cut_proxy(postgres.folder, Path(folder)) as proxy,
            relays(tmp_path, database, proxied) as (first, second),
        ):
            reader = Author()
            token = await second.token(second.admin)
            async with reading(second, reader) as cut_off:
                proxy.passes.clear()
                await cut_off.next("END")
                assert cut_off.stream.socket.close_code == 1013
            assert (await second.get("/readyz")).code == "relay_behind"
            assert (await second.get("/v1/events", token)).code == "relay_behind"
            message = direct(first.admin, reader, "while it was cut off")
            assert [reply.status for reply in await send(first, message)] == [201]
            proxy.passes.set()

            async def is_ready() -> bool:
                return (await second.get("/readyz")).status == 200

            await eventually(is_ready)
            async with reading(second, reader) as again:
                assert await again.bodies(1) == ["while it was cut off"]


async def test_leader_that_is_cut_from_the_database_is_replaced_and_follows_when_it_is_back(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        proxied = database.replace(str(postgres.folder), folder)
        async with (
            cut_proxy(postgres.folder, Path(folder)) as proxy,
            relays(tmp_path, proxied, database) as (first, second),
        ):
            client = await second.token(Author())
            proxy.passes.clear()
            lost_at = time.monotonic()

            async def is_replaced() -> bool:
                return cluster_of(second).is_leader

            await eventually(is_replaced)
            held = await second.post("/v1/locks/acquire", {"resource": "deploy", "lease_ms": 60_000}, client)
            assert held.status == 200, held.body
            assert time.monotonic() - lost_at < GRANT_S
            proxy.passes.set()

            async def has_followed() -> bool:
                return not cluster_of(first).is_leader and bool(cluster_of(first).links.open_links())

            await eventually(has_followed)
            refused = await first.post(
                "/v1/locks/acquire", {"resource": "deploy", "lease_ms": 60_000}, await first.token(Author())
            )
            assert refused.code == "held"
