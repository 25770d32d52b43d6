from __future__ import annotations

import pytest

from posthouse.model.budget import MeshBudget
from posthouse.model.errors import Refused
from posthouse.model.event import Tag, check_structure
from posthouse.model.message import (
    Confirmation,
    DestinationKind,
    Message,
    Priority,
    check_body,
    fingerprint,
    message_fingerprint,
    read_confirmation,
    read_message,
    validate_client_message_id,
)
from tests.model.strategies import make_event

BOB = "ed25519:" + "b" * 64
EVE = "ed25519:" + "e" * 64
ID = "1" * 64
AGENT_NAMES_REFUSED = ("", "-a", "A", "a_b", "a/b", "a@b", "a.b", "a b", "é", "a\n", "a" * 33)


def message(*tags: Tag, content: str = "hello") -> Message:
    event = make_event(kind=1000, tags=tags, content=content)
    check_structure(event)
    return read_message(event)


def test_a_topic_message_is_read_with_its_defaults() -> None:
    assert message(("t", "alerts.db"), ("c", "id-1")) == Message(
        mesh="main",
        client_message_id="id-1",
        destination_kind=DestinationKind.TOPIC,
        destination_ref="alerts.db",
        recipient=None,
        reply_to=None,
        priority=Priority.NEXT,
        meta="",
        budget=None,
        mentions=(),
    )


def test_a_direct_message_is_read_with_all_its_tags() -> None:
    budget = '{"hop_count":1,"max_hops":50,"call_budget_remaining":9,"ttl":5}'
    read = message(
        ("mesh", "lab"),
        ("p", BOB),
        ("c", "id-1"),
        ("e", ID),
        ("priority", "now"),
        ("meta", '{"usage":{"model":"m"}}'),
        ("budget", budget),
        ("mention", EVE),
        ("mention", BOB),
        ("mention", EVE),
    )
    assert read == Message(
        mesh="lab",
        client_message_id="id-1",
        destination_kind=DestinationKind.DM,
        destination_ref="b" * 64,
        recipient=BOB,
        reply_to=ID,
        priority=Priority.NOW,
        meta='{"usage":{"model":"m"}}',
        budget=MeshBudget(hop_count=1, max_hops=50, call_budget_remaining=9, ttl=5),
        mentions=(EVE, BOB),
    )


def test_a_message_names_the_agent_that_sent_it_and_the_agent_that_it_is_for() -> None:
    read = message(("p", BOB), ("c", "id-1"), ("from", "claude"), ("to", "codex-2"))
    assert (read.from_agent, read.to_agent) == ("claude", "codex-2")
    assert (read.destination_ref, read.recipient) == ("b" * 64 + "/codex-2", BOB)
    post = message(("t", "alerts"), ("c", "id-1"), ("from", "a" * 32))
    assert (post.from_agent, post.to_agent, post.destination_ref) == ("a" * 32, "", "alerts")


def test_messages_without_agents_are_for_the_host_itself() -> None:
    read = message(("p", BOB), ("c", "id-1"))
    assert (read.from_agent, read.to_agent, read.destination_ref) == ("", "", "b" * 64)


@pytest.mark.parametrize(
    "tags",
    [
        (("p", BOB), ("c", "1"), ("to", "a"), ("to", "a")),
        (("p", BOB), ("c", "1"), ("from", "a"), ("from", "b")),
        (("p", BOB), ("c", "1"), ("to", "a", "b")),
        (("p", BOB), ("c", "1"), ("to",)),
        (("t", "a"), ("c", "1"), ("to", "a")),
        *((("p", BOB), ("c", "1"), (tag, name)) for tag in ("from", "to") for name in AGENT_NAMES_REFUSED),
        (("t", "a"),),
        (("c", "1"),),
        (("t", "a"), ("c", "1"), ("c", "2")),
        (("t", "a"), ("c", "1"), ("c", "1")),
        (("t", "a"), ("p", BOB), ("c", "1")),
        (("t", "a"), ("t", "b"), ("c", "1")),
        (("p", BOB), ("p", EVE), ("c", "1")),
        (("p", "b" * 64), ("c", "1")),
        (("t",), ("c", "1")),
        (("t", "a", "b"), ("c", "1")),
        (("t", "a"), ("c",)),
        (("t", "a"), ("c", "")),
        (("t", "a"), ("c", "a\nb")),
        (("t", "a"), ("c", "x" * 256)),
        (("t", "a"), ("c", "1"), ("e", "msg_01")),
        (("t", "a"), ("c", "1"), ("e", ID), ("e", ID)),
        (("t", "a"), ("c", "1"), ("priority", "urgent")),
        (("t", "a"), ("c", "1"), ("meta", '{"a": 1}')),
        (("t", "a"), ("c", "1"), ("meta", '{"b":1,"a":2}')),
        (("t", "a"), ("c", "1"), ("meta", '{"a":1,"a":1}')),
        (("t", "a"), ("c", "1"), ("meta", '{"a":1.0}')),
        (("t", "a"), ("c", "1"), ("meta", '{"a":9007199254740992}')),
        (("t", "a"), ("c", "1"), ("meta", '"text"')),
        (("t", "a"), ("c", "1"), ("meta", "")),
        (("t", "a"), ("c", "1"), ("budget", "{}")),
        (("t", "a"), ("c", "1"), ("mention", "bob")),
    ],
)
def test_a_malformed_message_is_refused(tags: tuple[Tag, ...]) -> None:
    with pytest.raises(Refused) as caught:
        message(*tags)
    assert caught.value.code == "message_malformed"


def test_a_topic_that_is_no_subject_is_refused() -> None:
    for topic in ("a.*", "a..b", ""):
        with pytest.raises(Refused) as caught:
            message(("t", topic), ("c", "1"))
        assert caught.value.code == "topic_invalid"


def test_another_kind_is_no_message() -> None:
    with pytest.raises(Refused, match="kind is 1"):
        read_message(make_event(kind=1, tags=(("t", "a"), ("c", "1"))))


def test_a_body_has_at_most_48_kib_before_sealing() -> None:
    most = 48 * 1024
    assert check_body(b"x" * most)
    with pytest.raises(Refused) as caught:
        check_body(b"x" * (most + 1))
    assert caught.value.code == "body_too_large"
    tags = (("t", "a"), ("c", "1"))
    assert message(*tags, content="x" * most).client_message_id == "1"
    for content in ("x" * (most + 1), "é" * (most // 2 + 1)):
        with pytest.raises(Refused) as caught:
            message(*tags, content=content)
        assert caught.value.code == "body_too_large"


def test_a_sealed_body_has_room_for_its_sealing() -> None:
    tags = (("p", BOB), ("c", "1"), ("enc", "box"))
    sealed = (48 * 1024 + 24 + 16 + 2) // 3 * 4
    assert message(*tags, content="A" * sealed).recipient == BOB
    with pytest.raises(Refused, match="limit"):
        message(*tags, content="A" * (sealed + 1))
    assert message(("p", BOB), ("c", "1"), ("enc", "age"), content="A" * (sealed + 1)).recipient == BOB


def test_the_accept_fingerprint_is_over_the_content_as_received() -> None:
    event = make_event(kind=1000, tags=(("p", BOB), ("c", "1"), ("meta", "{}"), ("mention", EVE)), content="sealed")
    expected = fingerprint(DestinationKind.DM, "b" * 64, None, None, "", b"sealed")
    assert message_fingerprint(read_message(event), event) == expected


def test_a_client_message_id_is_printable_and_bounded() -> None:
    assert validate_client_message_id("é" * 127)
    for bad in ("", "é" * 128, "a\x00", "a\x7f", "a\x85", "\ud800"):
        with pytest.raises(Refused) as caught:
            validate_client_message_id(bad)
        assert caught.value.code == "id_invalid"


def confirmation(*tags: Tag, kind: int = 1001) -> Confirmation:
    return read_confirmation(make_event(pubkey=BOB, kind=kind, tags=tags))


def test_a_confirmation_names_its_reader_sender_and_ids() -> None:
    ids = [f"{n:064x}" for n in range(50)]
    read = confirmation(("mesh", "lab"), ("p", EVE), *(("e", i) for i in ids))
    assert read == Confirmation("lab", BOB, EVE, tuple(ids))


@pytest.mark.parametrize(
    "tags",
    [
        (("p", EVE),),
        (("e", ID),),
        (("p", EVE), ("p", EVE), ("e", ID)),
        (("p", "eve"), ("e", ID)),
        (("p", EVE), ("e", "x")),
        (("p", EVE), ("e",)),
        (("p", EVE), ("e", ID, "x")),
        (("p", EVE), *((("e", ID),) * 51)),
    ],
)
def test_a_malformed_confirmation_is_refused(tags: tuple[Tag, ...]) -> None:
    with pytest.raises(Refused) as caught:
        confirmation(*tags)
    assert caught.value.code == "confirmation_malformed"


def test_another_kind_is_no_confirmation() -> None:
    with pytest.raises(Refused, match="kind"):
        confirmation(("p", EVE), ("e", ID), kind=1000)
