"""A database of the first schema, with the data of a relay: a relay of this version opens it, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError
from posthouse.relay.store.postgresql.pg_store import RELAY
from tests.client.house import ADMIN, open_house
from tests.client.waiting import take
from tests.postgresql.server import PostgresServer
from tests.relay.both_stores import server_findings

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename != 'schema_versions'"
_COLUMNS = "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s"
_SEQUENCE = "SELECT setval(pg_get_serial_sequence('mailboxes', 'mailbox'), (SELECT max(mailbox) FROM mailboxes))"


def copy_into_first_schema(source_url: str, target_url: str) -> None:
    """Fill an empty database with the rows of another one, as far as the first schema had tables and columns."""
    with psycopg.connect(source_url) as source, psycopg.connect(target_url) as target:
        target.execute("CREATE TABLE schema_versions (component text PRIMARY KEY, version integer NOT NULL)")
        target.execute(RELAY.migrations[0].encode())
        target.execute("INSERT INTO schema_versions VALUES ('relay', 1)")
        target.execute("SET session_replication_role = replica")  # foreign keys and triggers: rows come in any order
        for (table,) in target.execute(_TABLES).fetchall():
            columns = [sql.Identifier(name) for (name,) in target.execute(_COLUMNS, (table,)).fetchall()]
            named, place = sql.SQL(", ").join(columns), sql.Identifier(table)
            values = sql.SQL(", ").join([sql.Placeholder()] * len(columns))
            target.execute(sql.SQL("DELETE FROM {}").format(place))
            rows = source.execute(sql.SQL("SELECT {} FROM {}").format(named, place)).fetchall()
            insert = sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE VALUES ({})").format(place, named, values)
            target.cursor().executemany(insert, rows)
        target.execute(_SEQUENCE)


async def test_relay_opens_a_database_of_the_first_schema_and_goes_on_with_everything(
    postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    ann, ben = NodeKey.generate(), NodeKey.generate()
    async with open_house(tmp_path, store=database) as house:
        admin, sender = house.client(ADMIN), house.client(ann)
        await admin.meshes.add_member("main", ben.node, "ben", "reader")
        note = await sender.publish("a note", kind=1)
        waiting = await sender.send(ben.node, "while you were away", client_message_id="1")
        await sender.locks.acquire("deploy", lease_ms=600_000)
        usage = await admin.meshes.usage("main")
    postgres.admin("CREATE DATABASE first_schema ENCODING 'UTF8' TEMPLATE template0")
    old = postgres.url("first_schema")
    copy_into_first_schema(database, old)
    async with open_house(tmp_path, store=old) as house:
        admin, sender, reader = house.client(ADMIN), house.client(ann), house.client(ben)
        assert [(each.name, each.role) for each in await admin.meshes.members("main") if each.name == "ben"] == [
            ("ben", "reader")
        ]
        assert (await admin.meshes.usage("main")).events == usage.events
        assert [stored.event for stored in (await sender.query({"ids": [note.event.id]})).events] == [note.event]
        async with await reader.receive() as mailbox:
            [delivery] = await take(mailbox, 1)
            assert (delivery.id, delivery.body) == (waiting.id, "while you were away")
            await mailbox.confirm(delivery)
        with pytest.raises(PosthouseError, match="different request"):
            await sender.send(ben.node, "another text", client_message_id="1")
        with pytest.raises(PosthouseError, match="is held by"):
            await admin.locks.acquire("deploy", lease_ms=1_000)
        await sender.keys.rotate(NodeKey.generate())  # needs tables that came later
    assert server_findings(old) == []
