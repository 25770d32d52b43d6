"""Fan-out: equal filters are compared once, equal texts are assembled once, and rights hold for each reader."""

from __future__ import annotations

import json

from posthouse.model.event import Event, encode_event
from posthouse.model.filters import Filter
from posthouse.relay.live import Delivery, Live
from posthouse.relay.wire.accept_results import Committed
from posthouse.relay.wire.frames import WebSocketFormat

ALICE, BOB = "ed25519:" + "a" * 64, "ed25519:" + "b" * 64


class Listener:
    """A reader that keeps what it gets."""

    def __init__(self, node: str = ALICE, sub: str = "s") -> None:
        self.node = node
        self.layout = WebSocketFormat(sub)
        self.frames: list[bytes] = []

    def push(self, delivery: Delivery) -> None:
        self.frames.append(delivery.frame(self.layout))


def committed(seq: int | None, kind: int = 1, mesh: str = "main", recipient: str | None = None) -> Committed:
    event = Event(
        id=f"{seq or 0:064x}", pubkey=ALICE, created_at_ns=1, kind=kind, tags=(), content="ä\n", sig="0" * 128
    )
    return Committed(seq, event, encode_event(event), mesh, recipient)


def seqs(frame: bytes) -> list[int | None]:
    size = frame[1] & 0x7F
    text = json.loads(frame[{126: 4, 127: 10}.get(size, 2) :])
    commands = text if isinstance(text[0], list) else [text]
    assert all(command[0] == "EVENT" for command in commands)
    return [command[3] for command in commands]


def may_read(event: Committed, node: str) -> bool:
    return event.may_read(node) and (event.mesh != "secret" or node == ALICE)


def test_readers_of_equal_filters_and_ids_share_one_object() -> None:
    live = Live(may_read)
    readers = [Listener() for _ in range(100)]
    other = Listener(sub="other")
    for reader in (*readers, other):
        live.add(reader, [Filter(kinds=frozenset({1}))])
    live.publish([committed(1), committed(2), committed(3, kind=2)])
    assert live.comparisons == 2
    assert seqs(readers[0].frames[0]) == [1, 2]
    assert len({id(reader.frames[0]) for reader in readers}) == 1
    assert seqs(other.frames[0]) == [1, 2]
    assert live.delivered == 202


def test_filters_of_nodes_that_may_not_read_the_mesh_are_not_compared() -> None:
    open_to: dict[str, frozenset[str] | None] = {ALICE: None, BOB: frozenset({"main"})}
    live = Live(lambda event, node: (open_to[node] or {"main", "secret"}) >= {event.mesh}, readable=open_to.__getitem__)
    alice, outsiders = Listener(ALICE), [Listener(BOB) for _ in range(1_000)]
    live.add(alice, [Filter(kinds=frozenset({1}))])
    for number, outsider in enumerate(outsiders):
        live.add(outsider, [Filter(kinds=frozenset({1, number + 2}))])
    live.publish([committed(1, mesh="secret")])
    assert (live.comparisons, seqs(alice.frames[0])) == (1, [1])
    open_to[BOB] = None
    live.note_rights_changed("secret")
    live.publish([committed(2, mesh="secret")])
    assert all(seqs(outsider.frames[0]) == [2] for outsider in outsiders)
    open_to[BOB] = frozenset({"main"})
    live.note_rights_changed("secret")
    before = live.comparisons
    live.publish([committed(3, mesh="secret"), committed(4)])
    assert live.comparisons - before == 2 + 1_000
    assert all(seqs(outsider.frames[-1]) == [4] for outsider in outsiders)
    for reader in (alice, *outsiders):
        live.remove(reader)
    assert len(live) == 0
    assert live.comparisons == before + 1_002


def test_single_event_is_one_command_and_ephemeral_ones_have_no_seq() -> None:
    live = Live(may_read)
    reader = Listener()
    live.add(reader, [Filter()])
    live.publish([committed(None, 20_000)])
    assert seqs(reader.frames[0]) == [None]
    assert live.head == 0


def test_reader_without_the_right_gets_the_rest_in_order() -> None:
    live = Live(may_read)
    alice, bob, carol = Listener(ALICE), Listener(BOB), Listener("ed25519:" + "c" * 64)
    for reader in (alice, bob, carol):
        live.add(reader, [Filter()])
    live.publish([committed(1), committed(2, mesh="secret"), committed(3, recipient=BOB), committed(4)])
    assert seqs(alice.frames[0]) == [1, 2, 3, 4]
    assert seqs(bob.frames[0]) == [1, 3, 4]
    assert seqs(carol.frames[0]) == [1, 4]


def test_reader_that_may_read_nothing_of_a_batch_gets_no_frame() -> None:
    live = Live(may_read)
    bob = Listener(BOB)
    live.add(bob, [Filter()])
    live.publish([committed(1, mesh="secret")])
    assert bob.frames == []


def test_rights_are_asked_once_per_batch_for_node_and_mesh() -> None:
    asked: list[tuple[str, str]] = []

    def noting(event: Committed, node: str) -> bool:
        asked.append((node, event.mesh))
        return True

    live = Live(noting)
    for reader in [Listener() for _ in range(10)]:
        live.add(reader, [Filter()])
    live.publish([committed(number) for number in range(1, 65)])
    assert asked == [(ALICE, "main")]


def test_removed_reader_gets_nothing_and_leaves_nothing() -> None:
    live = Live(may_read)
    first, second = Listener(), Listener()
    live.add(first, [Filter()])
    live.add(second, [Filter()])
    live.remove(first)
    live.publish([committed(1)])
    assert (len(first.frames), len(second.frames)) == (0, 1)
    live.remove(second)
    live.remove(second)
    assert (len(live), live._sections) == (0, {})


def test_head_follows_the_greatest_seq() -> None:
    live = Live(may_read, head=7)
    assert live.head == 7
    live.publish([committed(8), committed(None, 20_000), committed(9)])
    assert live.head == 9


def test_rights_of_a_node_are_looked_up_once_for_all_its_subscriptions() -> None:
    asked: list[str] = []

    def note(event: Committed, node: str) -> bool:
        asked.append(node)
        return may_read(event, node)

    live = Live(note)
    outsiders = [Listener(BOB, sub=str(number)) for number in range(1_000)]
    for reader in outsiders:
        live.add(reader, [Filter()])
    live.publish([committed(1, mesh="secret"), committed(2, mesh="secret", recipient=ALICE)])
    assert len(asked) <= 3
    assert not any(reader.frames for reader in outsiders)
    for reader in outsiders:
        live.remove(reader)
    assert len(live) == 0
