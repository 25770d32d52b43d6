"""Real activity of kinds that the made-up week lacks: Pinch agents, writers behind fences, a bus after a boot."""

from __future__ import annotations

from pathlib import Path

from posthouse import Bus
from posthouse.keys import NodeKey
from posthouse.model.access_rules import AccessRule, Action
from posthouse.model.clock import FakeClock
from posthouse.model.reliability import DeadLetterLimits, Reliability
from posthouse.relay.store.sqlite.store import FILE_NAME
from tests.client.house import House
from tests.relay.pinch.house import pinching, wire

PAGE = 30_001  # an addressable kind
#: holds the lock first, and writes once more after it was given to OTHER
WRITER = NodeKey(b"w" * 32)
OTHER = NodeKey(b"o" * 32)


async def write_pinch(data_dir: Path, count: int = 6) -> Path:
    """Let agents write, confirm, block and go away at a relay in this directory; return its store."""
    async with pinching(data_dir) as edge, wire(edge) as made:
        alice, bob = made.party(), made.party()
        await alice.connect()
        await bob.connect()
        sent = [await alice.send(bob, f"at once {number}") for number in range(count)]
        await bob.receive(count)
        await bob.confirm(alice, *sent[: count - 1])
        await alice.confirmed(count - 1)
        await bob.disconnect()
        waiting = await alice.send(bob, "waits")
        await bob.connect()
        await bob.receive(1)  # what it has read and not confirmed does not come again
        await bob.confirm(alice, waiting)
        await bob.block(alice)
        await alice.send(bob, "does not arrive")
        await bob.unblock(alice)
    return data_dir / FILE_NAME


async def write_troubled_bus(root: Path) -> Path:
    """Let a message be delivered again after a boot, and refused ones lose payloads and letters; return the store."""
    clock = FakeClock()
    bounds = Reliability(dead_letters=DeadLetterLimits(max_letters=2, max_bytes=3_000))
    async with Bus(root, clock=clock, reliability=bounds) as bus:
        await bus.register_endpoint("a.b", owner="tests")
        taken = (await bus.publish("a.b", 1, from_="c")).message_id
        await bus.add_rule(AccessRule(from_="guest", to="a.b", action=Action.DENY, priority=1))
        for _ in range(4):
            await bus.publish("a.b", "x" * 2_000, from_="guest")
    (mailbox,) = (root / "mailboxes").iterdir()
    (mailbox / "new" / taken).rename(mailbox / "cur" / taken)
    clock.reboot()
    async with Bus(root, clock=clock) as bus:
        await bus.ack("a.b", taken)
    return root / "bus.db"


async def write_fenced(house: House) -> None:
    """Write pages under a lock that passes from one node to another; some of them without a fence."""
    async with house.client(WRITER) as writer, house.client(OTHER) as other:
        async with writer.lock("page", lease_s=30) as held:
            await writer.publish("first", kind=PAGE, tags=[("d", "page"), fence(held.token, "strict")])
            await writer.publish("draft", kind=PAGE, tags=[("d", "draft")])
        async with other.lock("page", lease_s=30) as held:
            await other.publish("second", kind=PAGE, tags=[("d", "page"), fence(held.token)])
            await writer.publish("late", kind=PAGE, tags=[("d", "late")])
        await writer.publish("after all", kind=PAGE, tags=[("d", "after")])


def fence(token: int, *strict: str) -> tuple[str, ...]:
    """Return the tag of a write under the lock of the page."""
    return ("fence", "page", str(token), *strict)
