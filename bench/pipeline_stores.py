"""Generated relay stores: one with records of one size, one with the records of messages, locks and refusals.

Bodies are f-strings instead of encoded structs: generating millions of records of a fixed size has to be fast.
"""

from __future__ import annotations

from pathlib import Path

from bench.scales import ROW_BYTES
from posthouse.files import private_dir
from posthouse.journal.append import Fact, JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.clock import FakeClock
from posthouse.relay.store.sqlite.store import RELAY

_PAGE = 20_000
_PAGE_S = 300.0
_STEPS = 4  # records per message of a mixed history
_THREAD = 5  # messages of a conversation, each a reply to the one before
_DAY_S = 86_400.0
_MINUTE_NS = 60 * 10**9
_NODE = "ed25519:" + "ab" * 32
_FIXED_BYTES = len("message.accepted") + len("main") + len(_NODE) + 64 + 16  # all columns but the body
_META = '{\\"usage\\":{\\"model\\":\\"large\\",\\"input_tokens\\":10,\\"output_tokens\\":3,\\"cost_usd\\":0.001}}'
_EVENT = f'{{"tags":[["mesh","main"],["meta","{_META}"]],"content":"hello"}}'
_ADD_EVENTS = """
INSERT INTO events (seq, id, pubkey, kind, created_at_ns, mesh, raw)
SELECT seq, unhex(ref), unhex(substr(actor, 9)), 1000, at_ns, mesh, CAST(? AS BLOB) FROM journal
WHERE seq >= ? AND type = 'message.accepted'
"""


def make_store(folder: Path, rows: int) -> Path:
    """Create a relay store whose journal has this many records of 256 bytes, over several hours."""
    path, clock = private_dir(folder) / "relay.db", FakeClock()
    for first in range(0, rows, _PAGE):
        clock.advance(_PAGE_S)
        _append(path, clock, [_accepted(number) for number in range(first, min(first + _PAGE, rows))])
    return path


def make_mixed_store(folder: Path, rows: int) -> Path:
    """Create a relay store with a mixed history of one day, without events: a relay can open it."""
    store = MixedStore(folder, rows, has_events=False)
    store.grow(rows)
    return store.path


class MixedStore:
    """A relay store whose journal has accepted, sent and confirmed messages, locks and refusals.

    Its events have no signature: they are for the pipeline only.
    """

    def __init__(self, folder: Path, rows_per_day: int, *, has_events: bool = True) -> None:
        self.path = private_dir(folder) / "relay.db"
        self._has_events = has_events
        self._clock = FakeClock()
        self._rows_per_day = rows_per_day
        self._rows = 0

    def grow(self, rows: int) -> None:
        """Append records, in time as they would come."""
        page = max(1, self._rows_per_day // 4)
        for first in range(self._rows, self._rows + rows, page):
            numbers = range(first, min(first + page, self._rows + rows))
            self._clock.advance(_DAY_S * len(numbers) / self._rows_per_day)
            facts = [_mixed(number, self._clock.wall_ns() // _MINUTE_NS) for number in numbers]
            _append(self.path, self._clock, facts, has_events=self._has_events)
        self._rows += rows


def _append(path: Path, clock: FakeClock, facts: list[Fact], *, has_events: bool = False) -> None:
    store = Store(path, (RELAY,), clock)
    try:
        store.writer.run_blocking(lambda tx: _write(tx, facts, has_events=has_events))
    finally:
        store.close()


def _write(tx: JournalTransaction, facts: list[Fact], *, has_events: bool) -> None:
    first = tx.append_many(facts)
    if has_events:
        tx.flush()
        tx.db.execute(_ADD_EVENTS, (_EVENT, first))


def _accepted(number: int) -> Fact:
    frame = '{"client_message_id":"","size":1234}'
    padding = ROW_BYTES - _FIXED_BYTES - len(frame)
    body = frame.replace('""', f'"{number:0{padding}d}"', 1)
    return "message.accepted", "main", _NODE, f"{number:064x}", body


def _mixed(number: int, minute: int) -> Fact:
    """Return one record: of four, three belong to a message and one to a lock or a refusal."""
    message, step = divmod(number, _STEPS)
    id_, sender, reader = f"{message:064x}", _node(message % 37), _node(message % 41 + 50)
    if step == 0:
        reply = f',"reply_to":"{message - 1:064x}"' if message % _THREAD else ""
        fields = f'"client_message_id":"c{message}","size":700,"destination_kind":"node","recipients":["{reader}"]'
        body = f"{{{fields}{reply}}}"
        return "message.accepted", "main", sender, id_, body
    if step == 1:
        return "delivery.sent", "main", reader, reader, f'{{"ids":["{id_}"],"was_stored":[true],"attempts":[1]}}'
    if step == 2:
        return "delivery.confirmed", "main", reader, reader, f'{{"ids":["{id_}"],"was_stored":[false]}}'
    return _lock(message, sender) if message % 4 else _refused(message, sender, minute)


def _lock(message: int, owner: str) -> Fact:
    resource, token = f"db/{message % 13}", message // 13
    body = f'{{"owner":"{owner}","token":{token},"lease_ms":1000,"run_id":"r1","wait_ms":{message % 90}}}'
    return "lock.acquired" if message % 2 else "lock.released", "main", owner, resource, body


def _refused(message: int, sender: str, minute: int) -> Fact:
    return (
        "refused",
        "main",
        sender,
        "rate_limited",
        (f'{{"code":"rate_limited","key":"{sender}","minute":{minute},"count":{message % 7 + 1}}}'),
    )


def _node(number: int) -> str:
    return f"ed25519:{number:064x}"
