"""Closing and reopening rows on SQLite; each method changes rows, their mailbox's counters and the journal together."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import apsw
import msgspec

from posthouse.journal.append import JournalTransaction
from posthouse.model.limits import FLAP_ATTEMPTS_MAX, TIMEOUT_ATTEMPTS_MAX
from posthouse.relay.deliver.rows import NONE_CLOSED, OPEN, PARKED, Closed, Row, SweptRecords
from posthouse.relay.deliver.sqlite.component import CLOSE_SQL as SQL

_encode = msgspec.json.Encoder().encode
_rows = msgspec.json.Decoder(list[list[Any]]).decode


class ClosingDeliveries:
    """Every way in which a row ends, or begins again."""

    def __init__(self, tx: JournalTransaction) -> None:
        self._tx = tx
        self._db = tx.db

    def rows(self, mailbox: int, ids: Sequence[str]) -> list[Row]:
        keys = apsw.carray(tuple(bytes.fromhex(id_) for id_ in ids))
        found = _rows(self._db.execute(SQL.look_at_ids, (mailbox, keys)).get)
        return [
            Row(id_, seq, state, was_stored != 0, at_ns, sender) for id_, seq, state, was_stored, at_ns, sender in found
        ]

    def confirm(self, mailbox: int, seqs: Sequence[int], opened: int, parked: int) -> None:
        self._db.execute(SQL.confirm, (self._tx.now_ns, mailbox, _ints(seqs)))
        self._db.execute(SQL.shrink_mailbox, (opened, -parked, mailbox))

    def mark_sent(self, mesh: str, node: str, seqs: Sequence[int], *, was_stored: bool, record_body: str) -> None:
        mailbox = self._mailbox(mesh, node)
        self._db.execute(SQL.mark_sent, (int(was_stored), self._tx.now_ns, mailbox, _ints(seqs)))
        self._tx.append_many([("delivery.sent", mesh, node, node, record_body)])

    def reject(self, mesh: str, node: str, message_id: str, reason: str, before_ns: int) -> tuple[str, Closed]:
        mailbox = self._mailbox(mesh, node)
        found = [] if mailbox is None else self.rows(mailbox, [message_id])
        if mailbox is None or not found:
            return "", NONE_CLOSED
        row = found[0]
        if row.state not in OPEN:
            return row.state, NONE_CLOSED
        if row.opened_at_ns < before_ns:
            return "expired", NONE_CLOSED
        self._close(mailbox, "rejected", [row.seq], reason, parked=1)
        self._tx.append("delivery.rejected", mesh=mesh, actor=node, ref=message_id, body={"reason": reason})
        return "rejected", Closed(mesh, node, [row.seq], "rejected")

    def count_attempts(self, mesh: str, node: str, seqs: Sequence[int], *, is_timeout: bool) -> Closed:
        mailbox = self._mailbox(mesh, node)
        keys = _ints(seqs)
        self._db.execute(SQL.count_timeouts if is_timeout else SQL.count_flaps, (mailbox, keys))
        spent: list[Any] = self._db.execute(
            SQL.spent, (mailbox, keys, TIMEOUT_ATTEMPTS_MAX, FLAP_ATTEMPTS_MAX)
        ).fetchall()
        if mailbox is None or not spent:
            return NONE_CLOSED
        reason = "confirm_timeout" if is_timeout else "connection_lost"
        self._close(mailbox, "dead", [row[0] for row in spent], reason, parked=len(spent))
        for _seq, id_, sends, _timeouts, _flaps in spent:
            body = {"attempts": sends, "reason": reason}
            self._tx.append("delivery.dead", mesh=mesh, actor=node, ref=id_, body=body)
        return Closed(mesh, node, [row[0] for row in spent], "dead")

    def expire(self, mesh: str, node: str, before_ns: int, limit: int) -> Closed:
        mailbox = self._mailbox(mesh, node)
        if mailbox is None:
            return NONE_CLOSED
        found = _rows(self._db.execute(SQL.expired_rows, (mailbox, before_ns, limit)).get)
        return self._end(mailbox, mesh, node, "expired", found, {})

    def expire_events(self, seqs: Sequence[int]) -> None:
        """Close the open rows of messages whose own expiration has come, and mark their records."""
        by_mailbox: dict[tuple[int, str, str], list[list[Any]]] = {}
        rows: list[Any] = self._db.execute(SQL.open_rows_of_events, (_ints(seqs),)).fetchall()
        for mailbox, mesh, node, seq, id_ in rows:
            by_mailbox.setdefault((mailbox, mesh, node), []).append([seq, id_])
        for (mailbox, mesh, node), found in by_mailbox.items():
            self._end(mailbox, mesh, node, "expired", found, {})
        self.prune_records(seqs)

    def prune_records(self, seqs: Sequence[int]) -> None:
        """Note that the content of messages is gone; their records stay."""
        self._db.execute(SQL.prune_records, (_ints(seqs),))

    def archive(self, seqs: Sequence[int]) -> None:
        """Take away the ended deliveries of messages whose content is gone; their records stay and say so."""
        self.prune_records(seqs)
        self._db.execute(SQL.delete_deliveries, (_ints(seqs),))

    def block(self, mesh: str, node: str, sender: str) -> Closed:
        mailbox, from_ = self._mailbox(mesh, node), self._mailbox(mesh, sender)
        if mailbox is None or from_ is None:
            return NONE_CLOSED
        found = _rows(self._db.execute(SQL.rows_of_sender, (mailbox, from_)).get)
        return self._end(mailbox, mesh, node, "blocked", found, {"sender": sender})

    def purge(
        self, mesh: str, node: str, actor: str, ids: Sequence[str] | None, states: Sequence[str], limit: int
    ) -> tuple[list[str], Closed]:
        mailbox = self._mailbox(mesh, node)
        found = [] if mailbox is None else self._purgeable(mailbox, ids, states, limit)
        if mailbox is None or not found:
            return [], NONE_CLOSED
        seqs, names = [row[0] for row in found], [row[1] for row in found]
        parked = sum(row[2] in PARKED for row in found)
        self._db.execute(SQL.close, ("purged", self._tx.now_ns, None, mailbox, _ints(seqs)))
        self._db.execute(SQL.shrink_mailbox, (len(found) - parked, -parked, mailbox))
        body = {"ids": names, "recipient": node}
        self._tx.append("delivery.purged", mesh=mesh, actor=actor, ref=node, body=body)
        return names, Closed(mesh, node, seqs, "purged")

    def requeue(
        self, mesh: str, node: str, actor: str, ids: Sequence[str] | None, queue_max: int, limit: int
    ) -> tuple[list[str], list[str]]:
        mailbox = self._mailbox(mesh, node)
        found = [] if mailbox is None else self._purgeable(mailbox, ids, sorted(PARKED), limit)
        if mailbox is None or not found:
            return [], []
        room = max(0, queue_max - self._db.execute(SQL.open_rows, (mailbox,)).get)
        for seq, id_, state in found[:room]:
            body = {"recipient": node, "from_state": state}
            position = self._tx.append("delivery.requeued", mesh=mesh, actor=actor, ref=id_, body=body)
            self._db.execute(SQL.reopen, (position, self._tx.now_ns, mailbox, seq))
        reopened = [row[1] for row in found[:room]]
        self._db.execute(SQL.shrink_mailbox, (-len(reopened), -len(reopened), mailbox))
        return reopened, [row[1] for row in found[room:]]

    def sweep_records(self, after_seq: int, before_ns: int, limit: int) -> SweptRecords:
        rows: list[Any] = self._db.execute(SQL.look_at_records, (after_seq, limit)).fetchall()
        lasting = [seq for seq, _at, _needed in takewhile(lambda row: row[1] is None, rows)]
        ended = list(takewhile(lambda row: row[1] is None or row[1] < before_ns, rows))
        over = [seq for seq, expires_at_ns, is_needed in ended if expires_at_ns is not None and not is_needed]
        if over:
            for statement in (SQL.note_swept, SQL.delete_mentions, SQL.delete_deliveries, SQL.delete_records):
                self._db.execute(statement, (_ints(over),))
        has_more = ended and len(ended) == len(rows)
        return SweptRecords(lasting[-1] if lasting else after_seq, ended[-1][0] if has_more else None)

    def _purgeable(self, mailbox: int, ids: Sequence[str] | None, states: Sequence[str], limit: int) -> list[list[Any]]:
        named = None if ids is None else _encode(ids).decode()
        return _rows(self._db.execute(SQL.purgeable, (mailbox, named, _encode(states).decode(), limit)).get)

    def _end(
        self, mailbox: int, mesh: str, node: str, state: str, found: list[list[Any]], fields: dict[str, str]
    ) -> Closed:
        if not found:
            return NONE_CLOSED
        seqs = [seq for seq, _id in found]
        self._close(mailbox, state, seqs, None)
        body = {"ids": [id_ for _seq, id_ in found]} | fields
        self._tx.append(f"delivery.{state}", mesh=mesh, actor=node, ref=node, body=body)
        return Closed(mesh, node, seqs, state)

    def _close(self, mailbox: int, state: str, seqs: Sequence[int], reason: str | None, parked: int = 0) -> None:
        self._db.execute(SQL.close, (state, self._tx.now_ns, reason, mailbox, _ints(seqs)))
        self._db.execute(SQL.shrink_mailbox, (len(seqs), parked, mailbox))

    def _mailbox(self, mesh: str, node: str) -> int | None:
        mailbox: int | None = self._db.execute(SQL.mailbox_of, (mesh, node)).get
        return mailbox


def _ints(values: Sequence[int]) -> Any:
    """Return integers as a value that a statement can read as a table."""
    return apsw.carray(array("q", values))
