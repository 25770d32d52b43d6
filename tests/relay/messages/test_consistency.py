"""`relay check` finds each inconsistency that is planted."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from posthouse.journal.digest import content_digest, digest_contents, digest_records
from posthouse.model.api import ArchivedRange
from posthouse.relay.messages.consistency import DELIVERY_RULES
from posthouse.relay.ops.housekeeping import Pruning
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.relay.edge import Author
from tests.relay.messages.checked import checked, findings, history
from tests.relay.messages.correspondents import direct, reading, send

pytestmark = pytest.mark.sqlite

PLANTED = {
    "a record without its message": "UPDATE message_records SET seq = seq + 1000000",
    "a message without its record": "DELETE FROM message_records WHERE seq = (SELECT max(seq) FROM message_records)",
    "a record that says its message is gone": "UPDATE message_records SET history_available = 0",
    "content that is gone unmarked": "UPDATE events SET raw = NULL WHERE kind = 1000",
    "another fingerprint": "UPDATE message_records SET fingerprint = zeroblob(32)",
    "another sender": "UPDATE message_records SET sender = (SELECT max(mailbox) FROM mailboxes)",
    "another client_message_id": "UPDATE message_records SET client_message_id = client_message_id || 'x'",
    "another destination": "UPDATE message_records SET topic = 'elsewhere' WHERE topic IS NOT NULL",
    "a delivery without its record": "UPDATE deliveries SET seq = seq + 1000000 WHERE state = 'rejected'",
    "a delivery that is missing": "DELETE FROM deliveries WHERE state = 'confirmed'",
    "a delivery in another state": "UPDATE deliveries SET state = 'dead' WHERE state = 'rejected'",
    "a sent row that looks purged": "UPDATE deliveries SET state = 'purged', closed_at_ns = 1 WHERE state = 'sent'",
    "a delivery that was never opened": (
        "INSERT INTO deliveries (seq, mailbox, source, id, sender, position, state, opened_at_ns, closed_at_ns)"
        " SELECT seq, sender, source, id, sender, position, 'purged', 1, 1 FROM deliveries WHERE state = 'rejected'"
    ),
    "another sender of a delivery": "UPDATE deliveries SET sender = mailbox",
    "a wrong depth": "UPDATE mailboxes SET open_rows = open_rows + 1 WHERE open_rows > 0",
    "a wrong count of parked rows": "UPDATE mailboxes SET parked_rows = parked_rows + 1",
    "a wrong count of confirmations": "UPDATE mailboxes SET confirmation_ids = confirmation_ids + 1",
    "a confirmation that is no event": "UPDATE waiting_confirmations SET seq = seq + 1000000",
    "a confirmation for another": "UPDATE waiting_confirmations SET mailbox = (SELECT max(mailbox) FROM mailboxes)",
    "a mention that is missing": "DELETE FROM mentions",
    "a mention too many": "INSERT INTO mentions SELECT 'ed25519:' || hex(zeroblob(32)), max(seq) FROM message_records",
    "a mention of nothing": "UPDATE mentions SET seq = seq + 1000000",
    "two outcomes of one opening": (
        "UPDATE journal SET type = 'delivery.expired' WHERE type = 'delivery.sent'"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
async def test_planted_inconsistency_is_found(tmp_path: Path, what: str) -> None:
    await history(tmp_path / "relay")
    assert findings(tmp_path / "relay") == []
    db = apsw.Connection(str(tmp_path / "relay" / FILE_NAME))
    db.execute(PLANTED[what])
    assert db.total_changes() > 0
    found = [finding for rule in DELIVERY_RULES for finding in rule(db)]
    db.close()
    assert found, what


async def test_check_holds_after_pruning(tmp_path: Path) -> None:
    await history(tmp_path / "relay")
    async with checked(tmp_path / "relay") as edge:
        store = edge.server.context.engine.store
        extent = await store.extent()
        records = await store.journal(0, 10_000)
        stored = await store.contents(0, extent.head)
        contents = digest_contents([content_digest(raw or b"") for raw, _digest in stored])
        archived = ArchivedRange(store.epoch, 1, extent.head, digest_records(records), contents, contents_version=2)
        await Pruning(store).prune(archived)
        alice, bob = Author(), Author()
        await send(edge, direct(alice, bob, "after"))
        async with reading(edge, bob) as box:
            await box.delivered(1)
