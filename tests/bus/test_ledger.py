"""The ledger: which operations share a transaction, and in which order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from posthouse import Bus
from posthouse.bus.ledger import DEFERRED_MAX_OPERATIONS, Ledger
from posthouse.bus.transaction import BusTransaction
from posthouse.model.errors import error
from tests.bus.house import House
from tests.bus.waiting import DEADLINE_S, eventually


class Noted:
    """An operation that notes in which transaction it was applied, and may lead to another."""

    def __init__(self, notes: list[tuple[str, int]], name: str, then: Callable[[], None] | None = None) -> None:
        self._notes = notes
        self._name = name
        self._then = then
        self._transactions: list[BusTransaction] = []

    def apply(self, tx: BusTransaction) -> None:
        self._transactions.append(tx)  # alive, so that no other transaction gets its identity
        self._notes.append((self._name, id(tx)))

    def on_committed(self) -> None:
        if self._then is not None:
            self._then()

    def on_failed(self, _failure: Exception) -> bool:
        return False


def groups(notes: list[tuple[str, int]]) -> list[list[str]]:
    """Return the names by transaction, in order."""
    found: list[list[str]] = []
    last = None
    for name, transaction in notes:
        if transaction != last:
            found.append([])
            last = transaction
        found[-1].append(name)
    return found


def ledger_of(bus: Bus) -> Ledger:
    return bus.session.core.ledger


async def test_deferred_end_shares_the_transaction_of_the_next_publish(bus: Bus) -> None:
    ledger, notes = ledger_of(bus), list[tuple[str, int]]()
    operations: list[Noted] = [Noted(notes, "end"), Noted(notes, "close")]
    publish = Noted(notes, "publish", lambda: ledger.submit(operations[1]))
    ledger.defer(operations[0])
    ledger.submit_publish(publish)
    await eventually(lambda: len(notes) == 3)
    assert groups(notes) == [["end", "publish"], ["close"]]


async def test_deferred_end_is_written_soon_if_nothing_else_is(bus: Bus) -> None:
    ledger, notes = ledger_of(bus), list[tuple[str, int]]()
    operation = Noted(notes, "end")
    ledger.defer(operation)
    await eventually(lambda: groups(notes) == [["end"]])


async def test_submitted_operation_comes_after_everything_queued_before_it(bus: Bus) -> None:
    """A server that stops releases its lock only after the end of its last message is committed."""
    ledger, notes = ledger_of(bus), list[tuple[str, int]]()
    operations = {name: Noted(notes, name) for name in ("end", "reserve", "leave", "late end")}
    ledger.defer(operations["end"])
    ledger.submit_publish(operations["reserve"])
    ledger.submit(operations["leave"])
    ledger.defer(operations["late end"])
    await eventually(lambda: len(notes) == 4)
    assert groups(notes) == [["end", "reserve", "leave", "late end"]]


async def test_many_deferred_ends_do_not_wait_for_a_later_transaction(bus: Bus) -> None:
    ledger, notes = ledger_of(bus), list[tuple[str, int]]()
    operations = [Noted(notes, "end") for _ in range(DEFERRED_MAX_OPERATIONS)]
    reserve = Noted(notes, "reserve")
    for operation in operations:
        ledger.defer(operation)
    ledger.submit_publish(reserve)
    await eventually(lambda: len(notes) == DEFERRED_MAX_OPERATIONS + 1)
    assert groups(notes) == [["end"] * DEFERRED_MAX_OPERATIONS + ["reserve"]]


async def test_flush_and_run_commit_everything_queued_before_them(bus: Bus) -> None:
    ledger, notes = ledger_of(bus), list[tuple[str, int]]()
    operations = [Noted(notes, name) for name in ("end", "reserve", "end", "reserve")]
    ledger.defer(operations[0])
    ledger.submit_publish(operations[1])
    await ledger.flush()
    assert groups(notes) == [["end", "reserve"]]
    ledger.defer(operations[2])
    ledger.submit_publish(operations[3])
    assert await ledger.run(lambda _tx: len(notes)) == 4


class Refused(Noted):
    """An operation that the store has no room for, until `has_room`."""

    has_room = False

    def apply(self, tx: BusTransaction) -> None:
        if not self.has_room:
            raise error("store_full", path="bus.db", reason="no room")
        super().apply(tx)

    def on_failed(self, _failure: Exception) -> bool:
        return True


async def test_function_does_not_wait_for_an_operation_that_the_store_has_no_room_for(bus: Bus) -> None:
    ledger, notes = ledger_of(bus), list[tuple[str, int]]()
    refused = Refused(notes, "later")
    ledger.submit(refused)
    assert await asyncio.wait_for(ledger.run(lambda tx: tx.db.execute("SELECT 7").get), DEADLINE_S) == 7
    assert notes == []
    refused.has_room = True
    await eventually(lambda: [name for name, _ in notes] == ["later"])


class Broken(Noted):
    """An operation that raises after the others of its transaction were applied."""

    def apply(self, tx: BusTransaction) -> None:
        raise RuntimeError("broken")


async def test_publish_whose_transaction_is_rolled_back_leaves_no_file_of_the_first_try(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    published = asyncio.ensure_future(bus.publish("a.b", 1, from_="c"))
    await asyncio.sleep(0)  # the publish is queued
    ledger_of(bus).submit(Broken([], "broken"))
    result = await published
    assert house.mailbox("a.b").new == [result.message_id]
    assert await bus.depths() == {"a.b": 1}
