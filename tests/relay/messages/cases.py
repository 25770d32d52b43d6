"""The table of delivery cases: what must hold between a sender and a reader, whatever wire they use.

Each case is a function of a wire; CASES names them all, and every wire's tests run the whole table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.relay.messages.wires import Party, Wire

#: of the relay the cases run on
QUEUE_MAX = 400
BACKLOG = 300  # more than 256, a bound that relays have had


async def away(wire: Wire) -> tuple[Party, Party]:
    """Return a sender that is connected and a reader that is not."""
    alice, bob = wire.party(), wire.party()
    await alice.connect()
    return alice, bob


async def both(wire: Wire) -> tuple[Party, Party]:
    """Return a sender and a reader that are connected and have nothing to read."""
    alice, bob = await away(wire)
    await bob.connect()
    assert await bob.left() == []
    return alice, bob


async def send_all(sender: Party, reader: Party, count: int, start: int = 0) -> list[str]:
    """Send numbered messages and return their ids."""
    return [await sender.send(reader, str(number)) for number in range(start, start + count)]


async def three_queued_come_in_order_and_the_sender_hears_of_it(wire: Wire) -> None:
    alice, bob = await away(wire)
    ids = await send_all(alice, bob, 3)
    await bob.connect()
    assert await bob.pending() == 3
    got = await bob.receive(3)
    assert [each.id for each in got] == ids
    assert [each.body for each in got] == ["0", "1", "2"]
    await bob.confirm(alice, *ids)
    confirmed = await alice.confirmed(3)
    assert [each.id for each in confirmed] == ids
    assert {each.was_stored for each in confirmed} == {True}
    await bob.disconnect()
    await bob.connect()
    assert await bob.left() == []


async def full_queue_reaches_the_sender_with_the_id(wire: Wire) -> None:
    alice, bob = await away(wire)
    ids = await send_all(alice, bob, QUEUE_MAX)
    refused, named = await alice.send_refused(bob, "one too many")
    assert named == refused
    await bob.connect()
    assert await bob.pending() == QUEUE_MAX
    assert [each.id for each in await bob.receive(QUEUE_MAX)] == ids
    assert await bob.left() == []
    await bob.confirm(alice, ids[0])
    room = await alice.send(bob, "there is room again")
    assert [each.id for each in await bob.receive(1)] == [room]


async def backlog_survives_connections_that_break_in_its_middle(wire: Wire) -> None:
    alice, bob = await away(wire)
    ids = await send_all(alice, bob, 60)
    confirmed: list[str] = []
    for count in (0, 1, 17, 40):
        await bob.connect()
        assert await bob.pending() == len(ids) - len(confirmed)
        got = [each.id for each in await bob.receive(count)]
        assert got == [id_ for id_ in ids if id_ not in confirmed][:count]
        if got:
            await bob.confirm(alice, got[0])
            confirmed.append(got[0])
        await bob.cut()
    await bob.connect()
    rest = [each.id for each in await bob.receive(60 - len(confirmed))]
    assert rest == [id_ for id_ in ids if id_ not in confirmed]
    await bob.confirm(alice, *rest)
    assert sorted(each.id for each in await alice.confirmed(60)) == sorted(ids)


async def more_than_256_queued_all_come_in_order(wire: Wire) -> None:
    alice, bob = await away(wire)
    ids = await send_all(alice, bob, BACKLOG)
    await bob.connect()
    assert await bob.pending() == BACKLOG
    assert [each.id for each in await bob.receive(BACKLOG)] == ids
    await bob.confirm(alice, *ids)
    assert [each.id for each in await alice.confirmed(BACKLOG)] == ids


async def live_messages_come_after_the_backlog(wire: Wire) -> None:
    alice, bob = await away(wire)
    ids = await send_all(alice, bob, 120)
    await bob.connect()
    first = await bob.receive(1)
    ids += await send_all(alice, bob, 20, start=120)
    got = first + await bob.receive(139)
    assert [each.id for each in got] == ids


async def confirmation_that_is_lost_makes_a_message_come_again(wire: Wire) -> None:
    alice, bob = await away(wire)
    ids = await send_all(alice, bob, 2)
    await bob.connect()
    assert len(await bob.receive(2)) == 2
    await bob.confirm(alice, ids[0])
    await bob.cut()  # the second confirmation never left
    await bob.connect()
    assert [each.id for each in await bob.receive(1)] == [ids[1]]
    await bob.confirm(alice, ids[1])
    assert [each.id for each in await alice.confirmed(2)] == ids


async def confirmation_sent_twice_counts_once(wire: Wire) -> None:
    alice, bob = await both(wire)
    id_ = await alice.send(bob, "once")
    await bob.receive(1)
    await bob.confirm(alice, id_)
    assert [each.id for each in await alice.confirmed(1)] == [id_]
    await bob.confirm(alice, id_)
    assert await alice.unread_confirmations() == []


async def confirmation_by_somebody_else_counts_for_nothing(wire: Wire) -> None:
    alice, bob = await both(wire)
    mallory = wire.party()
    await mallory.connect()
    id_ = await alice.send(bob, "for bob")
    await bob.receive(1)
    await mallory.confirm(alice, id_)
    await bob.confirm(mallory, id_)  # nor one that names another sender
    assert await alice.unread_confirmations() == []
    await bob.cut()
    await bob.connect()
    assert [each.id for each in await bob.receive(1)] == [id_]


async def was_stored_is_decided_when_a_message_is_first_sent(wire: Wire) -> None:
    alice, bob = await away(wire)
    stored = await alice.send(bob, "stored")
    await bob.connect()
    await bob.receive(1)
    assert await bob.left() == []
    live = await alice.send(bob, "live")
    await bob.receive(1)
    await bob.cut()
    await bob.connect()
    assert [each.id for each in await bob.receive(2)] == [stored, live]
    await bob.confirm(alice, stored, live)
    assert await alice.confirmed(2) == [(stored, True), (live, False)]


async def confirmations_wait_for_a_sender_that_is_away(wire: Wire) -> None:
    alice, bob = await both(wire)
    ids = await send_all(alice, bob, 3)
    await alice.disconnect()
    await bob.receive(3)
    await bob.confirm(alice, *ids)
    await alice.connect()
    assert [each.id for each in await alice.confirmed(3)] == ids
    assert await alice.unread_confirmations() == []
    await alice.disconnect()
    await alice.connect()
    assert await alice.unread_confirmations() == []


async def block_drops_what_is_queued_and_unblock_brings_nothing_back(wire: Wire) -> None:
    alice, bob = await away(wire)
    carol = wire.party()
    await carol.connect()
    await alice.send(bob, "queued before")
    kept = await carol.send(bob, "from carol")
    await bob.connect()
    assert len(await bob.receive(2)) == 2
    await bob.block(alice)
    await bob.cut()
    await alice.send(bob, "while blocked")
    await bob.connect()
    assert [each.id for each in await bob.receive(1)] == [kept]
    assert await bob.left() == []
    answer = await bob.send(alice, "the other way is open")
    assert [each.id for each in await alice.receive(1)] == [answer]
    await bob.unblock(alice)
    after = await alice.send(bob, "after")
    assert [each.id for each in await bob.receive(1)] == [after]
    assert await alice.unread_confirmations() == []


Case = Callable[[Wire], Awaitable[None]]
CASES: tuple[Case, ...] = (
    three_queued_come_in_order_and_the_sender_hears_of_it,
    full_queue_reaches_the_sender_with_the_id,
    backlog_survives_connections_that_break_in_its_middle,
    more_than_256_queued_all_come_in_order,
    live_messages_come_after_the_backlog,
    confirmation_that_is_lost_makes_a_message_come_again,
    confirmation_sent_twice_counts_once,
    confirmation_by_somebody_else_counts_for_nothing,
    was_stored_is_decided_when_a_message_is_first_sent,
    confirmations_wait_for_a_sender_that_is_away,
    block_drops_what_is_queued_and_unblock_brings_nothing_back,
)


def case_name(case: Case) -> str:
    """Return a case as a test's name shows it."""
    return str(getattr(case, "__name__", case))
