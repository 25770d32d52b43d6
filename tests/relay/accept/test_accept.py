from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from posthouse.keys import sign_sshsig
from posthouse.model.clock import FakeClock
from posthouse.model.event import decode_event, encode_event
from posthouse.model.filters import Filter
from posthouse.relay.engine import RelayEngine
from posthouse.relay.wire.accept_results import Committed
from tests.relay.accept.answers import accepted, code, codes
from tests.relay.authors import ALICE, BOB, CAROL

WAIT_S = 20
SECOND_NS = 1_000_000_000


def listened(core: RelayEngine) -> list[Committed]:
    """Return a list that fills with the events that listeners get."""
    published: list[Committed] = []
    core.listen(published.extend)
    return published


async def test_new_event_is_answered_201_with_its_seq_and_read_back(core: RelayEngine) -> None:
    event = ALICE.event(1, ("t", "x"), content="hello")
    answer = accepted(await core.accept(encode_event(event)))
    assert (answer.status, answer.id, answer.duplicate) == (201, event.id, False)
    found = await core.event(BOB.node, event.id)
    assert (found.seq, decode_event(found.raw)) == (answer.seq, event)


async def test_known_event_is_answered_200_and_nobody_hears_of_it_again(core: RelayEngine) -> None:
    raw = ALICE.raw()
    first = accepted(await core.accept(raw))
    published = listened(core)
    second = accepted(await core.accept(raw))
    assert (second.status, second.duplicate, second.seq) == (200, True, first.seq)
    assert published == []


async def test_same_event_sent_many_times_at_once_is_stored_once(core: RelayEngine) -> None:
    raw, published = ALICE.raw(), listened(core)
    answers = await asyncio.gather(*(core.accept(raw) for _ in range(40)))
    assert sorted(codes(answers)) == ["200"] * 39 + ["201"]
    assert len({accepted(answer).seq for answer in answers}) == 1
    assert len(published) == 1


async def test_same_event_twice_in_one_list_is_stored_once(core: RelayEngine) -> None:
    raw = ALICE.raw()
    first, second = await core.accept_many([raw, raw])
    assert (code(first), code(second)) == ("201", "200")
    assert accepted(first).seq == accepted(second).seq


async def test_ephemeral_event_is_passed_on_and_not_stored(core: RelayEngine) -> None:
    published, event = listened(core), ALICE.event(20_101, content="here")
    answer = accepted(await core.accept(encode_event(event)))
    assert (answer.status, answer.seq) == (202, None)
    assert [(item.seq, item.event) for item in published] == [(None, event)]
    assert (await core.query(ALICE.node, [Filter()])).events == []


@pytest.mark.sqlite
async def test_listener_hears_only_what_a_reader_would_find(core: RelayEngine) -> None:
    findings: list[bool] = []

    def look(published: Sequence[Committed]) -> None:
        stored = core.store._store.pool.run_blocking(  # type: ignore[attr-defined]
            lambda db: {seq for (seq,) in db.execute("SELECT seq FROM events")}
        )
        findings.extend(item.seq in stored for item in published)

    core.listen(look)
    await core.accept_many([ALICE.raw() for _ in range(30)])
    assert findings == [True] * 30


async def test_listener_that_ended_hears_nothing(core: RelayEngine) -> None:
    published: list[Committed] = []
    end = core.listen(published.extend)
    end()
    await core.accept(ALICE.raw())
    assert published == []


async def test_event_with_an_ssh_signature_is_accepted(core: RelayEngine) -> None:
    event = ALICE.event()
    fields = json.loads(encode_event(event)) | {"sig": sign_sshsig(ALICE.key, event.canonical())}
    assert code(await core.accept(json.dumps(fields).encode())) == "201"


async def test_text_with_spaces_and_escapes_is_served_compact(core: RelayEngine) -> None:
    event = ALICE.event(content="é")
    spaced = json.dumps(json.loads(encode_event(event)), indent=2).encode()
    assert b"\\u00e9" in spaced
    await core.accept(spaced)
    assert (await core.event(ALICE.node, event.id)).raw == encode_event(event)


def _changed(**changes: Any) -> bytes:
    return json.dumps(json.loads(ALICE.raw()) | changes).encode()


def _without(field: str) -> bytes:
    fields = json.loads(ALICE.raw())
    del fields[field]
    return json.dumps(fields).encode()


MALFORMED: list[tuple[str, bytes]] = [
    ("json_invalid", b""),
    ("json_invalid", b"{"),
    ("json_invalid", b'{"content": "\xff"}'),
    ("event_not_object", b"[]"),
    ("event_field_missing", _without("sig")),
    ("event_field_unknown", _changed(extra=1)),
    ("event_field_type", _changed(kind="1")),
    ("event_field_type", _changed(tags=[[1]])),
    ("event_field_type", _changed(created_at_ns=1.5)),
    ("json_duplicate_key", ALICE.raw()[:-1] + b',"content":""}'),
    ("event_id_form", _changed(id="A" * 64)),
    ("event_id_mismatch", _changed(id="0" * 64)),
    ("event_id_mismatch", _changed(content="other")),
    ("event_pubkey_form", _changed(pubkey=ALICE.node.upper())),
    ("signature_invalid", _changed(sig="0" * 128)),
    ("event_sig_form", _changed(sig="00")),
    ("kind_invalid", ALICE.raw(40_000)),
    ("kind_invalid", ALICE.raw(0)),
    ("kind_not_publishable", ALICE.raw(22_242)),
    ("address_needs_d", ALICE.raw(30_000)),
    ("tag_malformed", ALICE.raw(1, ("expiration", "soon"))),
    ("tag_repeated", ALICE.raw(1, ("mesh", "a"), ("mesh", "b"))),
    ("mesh_name_invalid", ALICE.raw(1, ("mesh", "a b"))),
    ("tags_too_many", ALICE.raw(1, *[("t", str(number)) for number in range(201)])),
    ("tag_value_too_long", ALICE.raw(1, ("t", "x" * 8193))),
    ("event_too_large", ALICE.raw(content="x" * 131_072)),
    ("message_malformed", ALICE.raw(1000, ("p", BOB.node))),
    ("confirmation_malformed", ALICE.raw(1001, ("p", BOB.node))),
    ("mesh_unknown", ALICE.raw(1, ("mesh", "nowhere"))),
]


@pytest.mark.parametrize(("expected", "raw"), MALFORMED, ids=[f"{name}-{n}" for n, (name, _) in enumerate(MALFORMED)])
async def test_malformed_event_is_refused_with_its_code_and_nothing_is_stored(
    core: RelayEngine, expected: str, raw: bytes
) -> None:
    head = (await core.store.extent()).head
    assert code(await core.accept(raw)) == expected
    assert (await core.store.extent()).head == head


async def test_small_order_key_is_refused(core: RelayEngine) -> None:
    fields = json.loads(ALICE.raw()) | {"pubkey": "ed25519:" + "01" + "00" * 31}
    refused = await core.accept(json.dumps(fields).encode())
    assert code(refused) in ("event_id_mismatch", "node_id_invalid")


async def test_event_from_too_far_ahead_is_refused_until_its_time_comes_near(
    core: RelayEngine, clock: FakeClock
) -> None:
    raw = ALICE.raw(created_at_ns=clock.wall_ns() + 15 * 60 * SECOND_NS + 1)
    assert code(await core.accept(raw)) == "event_created_at_ahead"
    clock.advance(1)
    assert code(await core.accept(raw)) == "201"


async def test_retry_of_an_accepted_event_gets_its_answer_after_it_expired(core: RelayEngine, clock: FakeClock) -> None:
    raw = ALICE.raw(1, ("expiration", str(clock.wall_ns() // SECOND_NS + 10)))
    first = accepted(await core.accept(raw))
    clock.advance(11)
    assert code(await core.accept(BOB.raw(1, ("expiration", str(clock.wall_ns() // SECOND_NS))))) == "event_expired"
    again = accepted(await core.accept(raw))
    assert (again.duplicate, again.seq) == (True, first.seq)


async def test_retry_gets_its_answer_after_the_clock_was_set_back(core: RelayEngine, clock: FakeClock) -> None:
    raw = ALICE.raw()
    await core.accept(raw)
    clock.step_wall(-3_600)
    assert code(await core.accept(raw)) == "200"
    assert code(await core.accept(CAROL.raw(created_at_ns=clock.wall_ns() + 3_600 * SECOND_NS))) != "201"


async def test_expiration_beyond_any_date_is_accepted(core: RelayEngine) -> None:
    assert code(await core.accept(ALICE.raw(1, ("expiration", "9" * 19)))) == "201"
    assert len((await core.query(ALICE.node, [Filter()])).events) == 1


async def test_caller_that_goes_away_takes_neither_its_event_nor_the_answers_of_others(core: RelayEngine) -> None:
    event = ALICE.event()
    gone = asyncio.ensure_future(core.accept(encode_event(event)))
    await asyncio.sleep(0)
    other = asyncio.ensure_future(core.accept(BOB.raw()))
    gone.cancel()
    assert code(await asyncio.wait_for(other, WAIT_S)) == "201"
    assert await core.store.known([event.id])


async def test_core_that_closes_answers_what_is_on_the_way_and_refuses_the_rest(core: RelayEngine) -> None:
    running = [asyncio.ensure_future(core.accept(ALICE.raw())) for _ in range(20)]
    await asyncio.sleep(0)
    await core._path.close()
    assert codes([await answer for answer in running]) == ["201"] * 20
    with pytest.raises(Exception, match="stopping"):
        await core.accept(ALICE.raw())
