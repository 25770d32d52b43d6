from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from posthouse import Bus
from posthouse.model.envelope import Envelope, StandardPayload
from posthouse.model.errors import PosthouseError
from tests.bus.house import House
from tests.bus.listening import Recorder
from tests.bus.mailboxes import hash_of, unrouted

BAD_SUBJECTS = [
    "",
    " ",
    ".",
    "a.",
    ".a",
    "a..b",
    "a b",
    "a\n",
    "a\t.b",
    "ä",
    "a/b",
    "../../etc",
    "a\x00b",
    "a.>.b",
    "a.b*",
    "a" * 256,
    ".".join("a" * 17),
]


def everything_below(root: Path) -> list[str]:
    """Every message file of the data directory."""
    return [path.name for box in ("new", "cur", "tmp", "failed") for path in root.glob(f"**/{box}/*")]


async def test_published_message_lies_in_the_mailbox_as_one_camel_case_file(house: House, bus: Bus) -> None:
    await bus.register_endpoint("team.alpha")
    result = await bus.publish("team.alpha", {"text": "hi"}, from_="team.beta", reply_to="team.beta.inbox")
    (stored,) = house.mailbox("team.alpha").read("new")
    now_ms = house.clock.wall_ns() // 1_000_000
    assert stored == {
        "id": result.message_id,
        "subject": "team.alpha",
        "from": "team.beta",
        "replyTo": "team.beta.inbox",
        "budget": {
            "hopCount": 1,
            "maxHops": 20,
            "ancestorChain": ["team.alpha"],
            "ttl": now_ms + 7 * 86_400_000,
            "callBudgetRemaining": 99,
        },
        "createdAt": "2023-11-14T22:13:20.000Z",
        "payload": {"text": "hi"},
    }
    assert house.mailbox("team.alpha").new[0].startswith(result.message_id)


async def test_result_has_empty_containers_never_absent_ones(bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    result = await bus.publish("a.b", 1, from_="c")
    assert result.delivered_to == 1
    assert list(result.rejected) == []
    assert set(result.mailbox_pressure) <= {hash_of("a.b")}
    nowhere = await bus.publish("no.one", 1, from_="c")
    assert (nowhere.delivered_to, list(nowhere.rejected), dict(nowhere.mailbox_pressure)) == (0, [], {})


async def test_pressure_of_a_mailbox_is_reported_as_a_share(house: House) -> None:
    bus = await house.bus(reliability={"backpressure": {"maxMailboxSize": 4}})
    await bus.register_endpoint("a.b")
    shares = [(await bus.publish("a.b", n, from_="c")).mailbox_pressure[hash_of("a.b")] for n in range(4)]
    assert all(0 <= share <= 1 for share in shares)
    assert shares == sorted(shares)
    assert shares[-1] >= 0.75


async def test_message_without_endpoint_is_a_dead_letter_in_unrouted(house: House, bus: Bus) -> None:
    result = await bus.publish("nobody.here", {"n": 1}, from_="c")
    assert result.delivered_to == 0
    (letter,) = unrouted(house.root)
    assert letter["envelope"]["payload"] == {"n": 1}
    assert letter["envelope"]["subject"] == "nobody.here"
    assert letter["reason"]


async def test_wildcard_publish_stores_each_endpoints_own_subject_and_what_it_was_published_to(
    house: House, bus: Bus
) -> None:
    for subject in ("team.a", "team.b", "team.b.deep", "other.a"):
        await bus.register_endpoint(subject)
    result = await bus.publish("team.*", "all", from_="boss")
    assert result.delivered_to == 2
    for subject in ("team.a", "team.b"):
        (stored,) = house.mailbox(subject).read("new")
        assert (stored["subject"], stored["publishedTo"]) == (subject, "team.*")
    assert house.mailbox("team.b.deep").new == house.mailbox("other.a").new == []
    assert (await bus.publish("team.>", "rest", from_="boss")).delivered_to == 3


@pytest.mark.parametrize("pattern", [">", "team.*", "team.>"])
async def test_wildcard_publish_that_reaches_no_endpoint_is_a_dead_letter(house: House, bus: Bus, pattern: str) -> None:
    await bus.register_endpoint("other")
    await bus.unregister_endpoint("other")
    result = await bus.publish(pattern, "hello?", from_="boss")
    assert (result.delivered_to, list(result.rejected)) == (0, [])
    (letter,) = unrouted(house.root)
    assert (letter["envelope"]["subject"], letter["envelope"]["publishedTo"]) == (pattern, pattern)
    await bus.register_endpoint("team.a")
    (listed,) = await bus.dead_letters()
    assert (await bus.requeue(listed.subject, listed.id)).delivered_to == 1
    assert [envelope.payload for envelope in await bus.read_inbox("team.a", 1)] == ["hello?"]


async def test_literal_publish_says_nothing_about_where_it_was_published_to(house: House, bus: Bus) -> None:
    await bus.register_endpoint("team.a")
    await bus.publish("team.a", 1, from_="boss")
    assert "publishedTo" not in house.mailbox("team.a").read("new")[0]


@pytest.mark.parametrize("subject", BAD_SUBJECTS)
async def test_bad_subject_is_refused_and_the_error_carries_it(bus: Bus, house: House, subject: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.publish(subject, 1, from_="c")
    assert refused.value.code == "subject_invalid"
    assert refused.value.fields["subject"] == subject
    assert everything_below(house.root) == []


@pytest.mark.parametrize("sender", [*BAD_SUBJECTS, "team.*", "team.>", "*"])
async def test_bad_sender_is_refused_and_the_error_carries_it(bus: Bus, house: House, sender: str) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", 1, from_=sender)
    assert refused.value.code == "subject_invalid"
    assert refused.value.fields["subject"] == sender
    assert everything_below(house.root) == []


@pytest.mark.parametrize("reply_to", ["", "a b", "a.*", "a.>"])
async def test_bad_reply_subject_is_refused(bus: Bus, reply_to: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", 1, from_="c", reply_to=reply_to)
    assert refused.value.code == "subject_invalid"


@pytest.mark.parametrize(
    "payload",
    [object(), {1: "key"}, float("nan"), float("inf"), "\ud800", b"bytes", {"a": {1, 2}}, 2**70],
    ids=["object", "number as key", "nan", "inf", "surrogate", "bytes", "set", "wide integer"],
)
async def test_payload_that_is_no_json_raises_before_anything_is_written(
    bus: Bus, house: House, payload: object
) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", payload, from_="c")
    assert refused.value.code == "payload_unserialisable"
    with pytest.raises(PosthouseError):
        await bus.publish("no.endpoint", payload, from_="c")
    assert everything_below(house.root) == []
    assert (await bus.publish("a.b", "good", from_="c")).delivered_to == 1


async def test_payload_that_refers_to_itself_raises(bus: Bus) -> None:
    payload: dict[str, Any] = {}
    payload["self"] = payload
    with pytest.raises(PosthouseError) as refused:
        await bus.publish("a.b", payload, from_="c")
    assert refused.value.code == "payload_unserialisable"


@pytest.mark.parametrize("payload", [None, 0, "", [], {}, {"deep": [[[1.5, True, None]]]}, "ünï\u2028\x00"])
async def test_every_json_value_arrives_as_it_was_sent(bus: Bus, payload: object) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await bus.publish("a.b", payload, from_="c")
    assert await got.wait(1) == [payload]


async def test_payload_of_a_megabyte_arrives(bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    await bus.publish("a.b", {"text": "x" * 1_000_000}, from_="c")
    ((payload,)) = await got.wait(1)
    assert len(payload["text"]) == 1_000_000


async def test_standard_payload_is_written_in_camel_case(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", StandardPayload(content="hello", sender_name="Ann"), from_="c")
    assert house.mailbox("a.b").read("new")[0]["payload"] == {"content": "hello", "senderName": "Ann"}


async def test_ids_grow_also_when_the_clock_steps_back(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    first = (await bus.publish("a.b", 1, from_="c")).message_id
    house.clock.step_wall(-3_000)
    second = (await bus.publish("a.b", 2, from_="c")).message_id
    house.clock.step_wall(6_000)
    third = (await bus.publish("a.b", 3, from_="c")).message_id
    assert first < second < third


async def test_ids_grow_after_a_restart_although_the_clock_stepped_back(house: House) -> None:
    bus = await house.bus(reliability={"rateLimit": {"maxPerWindow": 2}})
    await bus.register_endpoint("a.b")
    ids = [(await bus.publish("a.b", number, from_="c")).message_id for number in range(3)]  # the last one is refused
    await bus.close()
    house.clock.step_wall(-3_000)
    bus = await house.bus()
    ids += [(await bus.publish("a.b", 1, from_="d")).message_id]
    await bus.close()
    house.clock.step_wall(-3_000)
    bus = await house.bus()
    ids += [(await bus.publish("a.b", 2, from_="d")).message_id]
    assert ids == sorted(set(ids))


async def test_a_lone_publish_writes_few_pages(house: House, bus: Bus) -> None:
    """Journal, its sequence and its index, mail, rate and depth; now and then a page is added to the file."""
    await bus.register_endpoint("a.b")
    wal = house.root / "bus.db-wal"
    before = wal.stat().st_size
    for number in range(50):
        await bus.publish("a.b", number, from_="c")
    assert (wal.stat().st_size - before) / (4_096 + 24) / 50 < 7


async def test_ids_grow_over_two_buses_on_one_directory(house: House) -> None:
    one, two = await house.bus(), await house.bus()
    await one.register_endpoint("a.b")
    ids = [(await bus.publish("a.b", 1, from_="c")).message_id for bus in (one, two, one, two, two, one)]
    assert ids == sorted(set(ids))


async def test_publishing_never_waits_for_handlers(bus: Bus) -> None:
    held = Recorder(holds=True)
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", held)
    results = [await asyncio.wait_for(bus.publish("a.b", n, from_="c"), 5) for n in range(20)]
    assert all(result.delivered_to == 1 for result in results)
    assert held.finished == 0
    held.release.set()
    assert await held.wait(20) == list(range(20))


async def test_tmp_is_empty_when_publish_has_returned(house: House, bus: Bus) -> None:
    await bus.register_endpoint("a.b")
    await asyncio.gather(*(bus.publish("a.b", n, from_="c") for n in range(64)))
    assert house.mailbox("a.b").names("tmp") == []
    assert len(house.mailbox("a.b").new) == 64


async def test_file_of_another_program_is_delivered_like_any_other(house: House, bus: Bus) -> None:
    """Mail dropped into new/ by rename, as DorkOS would, counts as mail."""
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", "ours", from_="c")
    box = house.mailbox("a.b")
    (stored,) = box.read("new")
    foreign_id = stored["id"][:-1] + ("0" if stored["id"][-1] != "0" else "1")
    written = box.path / "tmp" / foreign_id
    written.write_text(json.dumps(stored | {"id": foreign_id, "payload": "theirs"}))
    written.chmod(0o600)
    written.rename(box.path / "new" / foreign_id)
    await bus.subscribe("a.b", got)
    assert sorted(await got.wait(2)) == ["ours", "theirs"]


async def test_handler_gets_an_envelope_with_the_senders_name(bus: Bus) -> None:
    got = Recorder()
    await bus.register_endpoint("a.b")
    await bus.subscribe("a.b", got)
    result = await bus.publish("a.b", 1, from_="c.d", reply_to="c.d.replies")
    await got.wait(1)
    (envelope,) = got.envelopes
    assert isinstance(envelope, Envelope)
    assert (envelope.id, envelope.from_, envelope.reply_to) == (result.message_id, "c.d", "c.d.replies")
