"""The rules find every planted corruption and nothing in a history that the product itself has written."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from posthouse.pipeline.audit.stores import Histories, audit_histories, audit_stores, read_stores
from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.replication.mirroring import MirrorRights
from tests.pipeline.audit.activity import write_troubled_bus
from tests.pipeline.audit.corruptions import CORRUPTIONS
from tests.relay.edge import Author, running

#: Record types that the clean stores must contain, or a clean result would prove little.
COVERED = {
    *("message.accepted", "event.accepted", "confirmation.accepted", "delivery.requeued"),
    *("lock.acquired", "lock.taken_over", "lock.renewed", "lock.released", "bus.published", "bus.handled", "bus.dead"),
    *("outbox.done", "outbox.aborted", "inbox.received", "inbox.seen", "pinch.accepted", "pinch.confirmed"),
}
#: Corruptions that no other row contradicts.
ALONE = [name for name, each in CORRUPTIONS.items() if each.code.startswith(("fence_", "pinch_"))]


def test_a_clean_history_has_no_findings(stores: list[Path], clean: Histories) -> None:
    assert COVERED - {row.type for row in clean.journal} == set()
    assert audit_stores(*stores) == []


def test_redelivered_messages_and_dropped_letters_are_no_findings(tmp_path: Path) -> None:
    path = asyncio.run(write_troubled_bus(tmp_path / "bus"))
    history = read_stores([path])
    assert {"bus.redelivered", "bus.trimmed", "bus.purged"} <= {row.type for row in history.journal}
    assert audit_stores(path) == []


@pytest.mark.parametrize("fact", ["bus.published", "bus.dead"])
def test_redelivery_or_dropped_payload_of_nothing_is_found(tmp_path: Path, fact: str) -> None:
    """The same history without the publish of the message, or without the dead letters, does not add up."""
    history = read_stores([asyncio.run(write_troubled_bus(tmp_path / "bus"))])
    journal = [row._replace(type="bus.left") if row.type == fact else row for row in history.journal]
    assert {finding.code for finding in audit_histories(history._replace(journal=journal))} == {"bus_unknown"}


@pytest.mark.parametrize("name", ALONE)
def test_a_careful_forgery_is_one_finding(clean: Histories, name: str) -> None:
    corruption = CORRUPTIONS[name]
    assert [finding.code for finding in audit_histories(corruption.plant(clean))] == [corruption.code]


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name not in ALONE])
def test_planted_corruption_is_found(clean: Histories, name: str) -> None:
    corruption = CORRUPTIONS[name]
    planted = corruption.plant(clean)
    assert planted != clean
    assert corruption.code in {finding.code for finding in audit_histories(planted)}


async def _write_mirrored(folder: Path) -> Path:
    """Push a message, a confirmation of nothing and a fenced page of another relay."""
    sender, reader = Author(), Author()
    message = sender.event(1000, "hello", [("p", reader.node), ("c", "1")])
    confirmation = reader.event(1001, "", [("p", sender.node), ("e", message["id"])])
    page = sender.event(30_000, "x", [("d", "x"), ("fence", "build", "7")])
    async with running(folder) as edge:
        mirroring = edge.server.context.engine.mirroring
        mirroring.rights = MirrorRights(frozenset({(edge.admin.node, "main")}))
        events = [json.dumps(event).encode() for event in (message, confirmation, page)]
        pushed = await mirroring.push(edge.admin.node, "main", events)
        assert (pushed.stored, pushed.refused) == (3, [])
    assert check_relay(folder / "relay.db") == []
    return folder / "relay.db"


def test_mirrored_events_are_no_findings(tmp_path: Path) -> None:
    assert audit_stores(asyncio.run(_write_mirrored(tmp_path / "relay"))) == []


def test_fenced_event_that_only_claims_to_be_mirrored_elsewhere_is_found(tmp_path: Path) -> None:
    history = read_stores([asyncio.run(_write_mirrored(tmp_path / "relay"))])
    journal = [
        row._replace(body=row.body.replace('"mirrored_by"', '"mirrored_bx"')) if '"fence"' in row.body else row
        for row in history.journal
    ]
    assert "fence_violated" in {finding.code for finding in audit_histories(history._replace(journal=journal))}
