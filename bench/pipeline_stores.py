"""Generated relay stores: one with records of one size, one with the records of messages, locks and refusals.

Bodies are f-strings instead of encoded structs: generating millions of records of a fixed size has to be fast.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench.scales import ROW_BYTES
from posthouse.files import private_dir
from posthouse.journal.append import Fact, JournalTransaction
from posthouse.journal.store import Store
from posthouse.model.clock import FakeClock
from posthouse.relay.store.sqlite.store import RELAY

_PAGE = 20_000
_STEPS = 4  # records per message of a mixed history
_NODE = "ed25519:" + "ab" * 32
_FIXED_BYTES = len("message.accepted") + len("main") + len(_NODE) + 64 + 16  # all columns but the body


def make_store(folder: Path, rows: int) -> Path:
    """Create a relay store whose journal has this many records of 256 bytes, over several days."""
    return _fill(folder, rows, _accepted)


def make_mixed_store(folder: Path, rows: int) -> Path:
    """Create a relay store whose journal has accepted, sent and confirmed messages, locks and refusals."""
    return _fill(folder, rows, _mixed)


def _fill(folder: Path, rows: int, fact: Callable[[int], Fact]) -> Path:
    path = private_dir(folder) / "relay.db"
    clock = FakeClock()
    store = Store(path, (RELAY,), clock)
    try:
        for first in range(0, rows, _PAGE):
            clock.advance(300)
            facts = [fact(number) for number in range(first, min(first + _PAGE, rows))]
            store.writer.run_blocking(lambda tx, facts=facts: _append(tx, facts))  # type: ignore[misc]
    finally:
        store.close()
    return path


def _append(tx: JournalTransaction, facts: list[Fact]) -> None:
    tx.append_many(facts)


def _accepted(number: int) -> Fact:
    frame = '{"client_message_id":"","size":1234}'
    padding = ROW_BYTES - _FIXED_BYTES - len(frame)
    body = frame.replace('""', f'"{number:0{padding}d}"', 1)
    return "message.accepted", "main", _NODE, f"{number:064x}", body


def _mixed(number: int) -> Fact:
    """Return one record: of four, three belong to a message and one to a lock or a refusal."""
    message, step = divmod(number, _STEPS)
    id_, sender, reader = f"{message:064x}", _node(message % 37), _node(message % 41 + 50)
    if step == 0:
        body = f'{{"client_message_id":"c{message}","size":700,"destination_kind":"node","recipients":["{reader}"]}}'
        return "message.accepted", "main", sender, id_, body
    if step == 1:
        return "delivery.sent", "main", reader, reader, f'{{"ids":["{id_}"],"was_stored":[true],"attempts":[1]}}'
    if step == 2:
        return "delivery.confirmed", "main", reader, reader, f'{{"ids":["{id_}"],"was_stored":[false]}}'
    return _lock(message, sender) if message % 4 else _refused(message, sender)


def _lock(message: int, owner: str) -> Fact:
    resource, token = f"db/{message % 13}", message // 13
    body = f'{{"owner":"{owner}","token":{token},"lease_ms":1000,"run_id":"r1","wait_ms":{message % 90}}}'
    return "lock.acquired" if message % 2 else "lock.released", "main", owner, resource, body


def _refused(message: int, sender: str) -> Fact:
    return (
        "refused",
        "main",
        sender,
        "rate_limited",
        (f'{{"code":"rate_limited","key":"{sender}","minute":{message},"count":{message % 7 + 1}}}'),
    )


def _node(number: int) -> str:
    return f"ed25519:{number:064x}"
