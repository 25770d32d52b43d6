"""What must be true after the message campaign; a finding is a sentence, no finding means that nothing was lost.

It reads the store's file and the ledger, not the memory of any process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import apsw

from posthouse.relay.ops.maintenance import check_relay
from posthouse.relay.store.sqlite.store import FILE_NAME
from posthouse.sqlite.connection import open_reader
from tests.faults.audited import audit_findings
from tests.faults.messages_campaign import Ledger, Seen


def check_messages(data_dir: Path, *ledgers: Ledger, has_several: bool = False) -> list[str]:
    """Return what is wrong.

    Of several relays, one that is cut from its store may lose the mark that it sent a message. And one may have read a
    message before another confirmed it, and send it after it has answered the repeated confirmation: on that
    connection, not on a later one.
    """
    path = data_dir / FILE_NAME
    db = open_reader(path)
    try:
        found = [finding for ledger in ledgers for finding in _check_ledger(db, ledger, has_several)]
        return [*check_relay(path), *found, *audit_findings(path)]
    finally:
        db.close()


def _check_ledger(db: apsw.Connection, ledger: Ledger, has_several: bool) -> Iterator[str]:
    yield from _check_states(db, ledger)
    yield from _check_confirmed_once(db, ledger)
    yield from _check_reader(ledger, has_several)
    yield from _check_was_stored(db, ledger, has_several)
    yield from _check_told(db, ledger)
    yield from _check_receipts(db, ledger)


_STATES = (
    "SELECT lower(hex(d.id)), d.state FROM deliveries AS d JOIN mailboxes AS m ON m.mailbox = d.mailbox"
    " WHERE m.node = ?"
)


def _check_states(db: apsw.Connection, ledger: Ledger) -> Iterator[str]:
    rows = db.execute(_STATES, (ledger.reader,)).fetchall()
    states = {str(message_id): state for message_id, state in rows}
    for body, message_id in ledger.sent.items():
        if states.get(message_id) != "confirmed":
            yield f"open: message {body} is {states.get(message_id)}"
    seen = {each.body for each in ledger.seen}
    for body in ledger.sent:
        if body not in seen:
            yield f"lost: message {body} is confirmed and no reader has it"
    if len(states) != len(ledger.sent):
        yield f"twice: {len(states)} messages are stored of {len(ledger.sent)}"


def _check_confirmed_once(db: apsw.Connection, ledger: Ledger) -> Iterator[str]:
    bodies = db.execute("SELECT body FROM journal WHERE type = 'delivery.confirmed'").fetchall()
    counts = Counter(message_id for (body,) in bodies for message_id in json.loads(str(body))["ids"])
    for body, message_id in ledger.sent.items():
        if counts[message_id] != 1:
            yield f"confirmed: message {body} was confirmed {counts[message_id]} times"


def _check_reader(ledger: Ledger, has_several: bool) -> Iterator[str]:
    connections: dict[tuple[int, int], list[Seen]] = {}
    for each in ledger.seen:
        connections.setdefault(each.connection, []).append(each)
    for place, seen in connections.items():
        if any(left.seq >= right.seq for left, right in pairwise(seen)):
            yield f"disorder: connection {place} got messages out of order, or one twice"
    firsts = list({each.body: each.seq for each in ledger.seen}.values())  # a key stays where it first came in
    if firsts != sorted(firsts):
        yield "disorder: messages came for the first time out of commit order"
    for body in ledger.again if has_several else (*ledger.again, *ledger.overtaken):
        yield f"again: message {body} was handed out after the relay had confirmed it"


def _check_was_stored(db: apsw.Connection, ledger: Ledger, has_several: bool) -> Iterator[str]:
    stored = {str(seq): bool(flag) for seq, flag in db.execute("SELECT seq, was_stored FROM deliveries").fetchall()}
    for each in ledger.seen:
        is_stored = stored[str(each.seq)]
        if each.was_stored != is_stored and not (has_several and is_stored):
            yield f"was_stored: message {each.body} was said to be {each.was_stored}, attempt {each.attempt}"


def _check_told(db: apsw.Connection, ledger: Ledger) -> Iterator[str]:
    told = {each.id: each.was_stored for each in ledger.told}
    rows = db.execute("SELECT lower(hex(id)), was_stored FROM deliveries").fetchall()
    stored = {str(message_id): bool(flag) for message_id, flag in rows}
    for body, message_id in ledger.sent.items():
        if message_id not in told:
            yield f"untold: the sender did not hear of message {body}"
        elif told[message_id] != stored[message_id]:
            yield f"was_stored: the sender heard something else of message {body}"


def _check_receipts(db: apsw.Connection, ledger: Ledger) -> Iterator[str]:
    """A receipt that the relay answered is kept with its first time, recorded once, and heard as it is kept."""
    rows = db.execute(
        "SELECT lower(hex(d.id)), x.at_ms FROM receipts AS x JOIN deliveries AS d ON d.seq = x.seq"
    ).fetchall()
    kept = {str(message_id): at_ms for message_id, at_ms in rows}
    bodies = db.execute("SELECT body FROM journal WHERE type = 'delivery.receipt'").fetchall()
    counts = Counter(message_id for (body,) in bodies for message_id in json.loads(str(body))["ids"])
    for body, at_ms in ledger.receipts.items():
        if kept.get(ledger.sent[body]) != at_ms:
            yield f"receipt: message {body} was read at {at_ms}, the relay keeps {kept.get(ledger.sent[body])}"
    if counts != Counter(kept.keys()):
        yield f"receipt: {len(kept)} receipts are kept, the journal has {sum(counts.values())}"
    for heard in ledger.heard_receipts:
        if kept.get(heard.id) != heard.at_ms:
            yield f"receipt: the sender heard {heard.at_ms} of {heard.id}, the relay keeps {kept.get(heard.id)}"
