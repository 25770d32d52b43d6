from __future__ import annotations

import pytest

from posthouse.client import Client
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, Refused
from posthouse.relay.auth import Challenge, Challenges, open_challenges
from tests.client.house import House


async def publish(client: Client, *contents: str) -> list[str]:
    return [(await client.publish(content, kind=1, tags=[("t", content)])).event.id for content in contents]


async def test_query_pages_through_everything_in_commit_order(house: House) -> None:
    client = house.client()
    ids = await publish(client, "a", "b", "c", "d", "e")
    found: list[str] = []
    cursor: str | None = None
    for _ in range(10):
        page = await client.query({"kinds": [1]}, limit=2, cursor=cursor)
        found += [stored.event.id for stored in page.events]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ids


async def test_query_by_tag_author_and_time(house: House) -> None:
    client, other = house.client(), house.client()
    await publish(client, "a", "b")
    await publish(other, "a")
    page = await client.query({"#t": ["a"], "authors": [client.key.node]})
    assert [stored.event.content for stored in page.events] == ["a"]
    latest = page.events[0].event.created_at_ns
    assert not (await client.query({"kinds": [1], "until_ns": latest - 1})).events


async def test_descending_query_returns_the_newest_first(house: House) -> None:
    client = house.client()
    await publish(client, "a", "b", "c")
    page = await client.query({"kinds": [1]}, order="desc", limit=2)
    assert [stored.event.content for stored in page.events] == ["c", "b"]


@pytest.mark.parametrize("d", ["", "plain", "a/b", "a:b", "/history", "history", "100%", "ü ☕", "a,b", "?d=x&y", ".."])
async def test_latest_and_history_of_any_d(house: House, d: str) -> None:
    client = house.client()
    first = await client.publish("old", kind=30_001, tags=[("d", d)])
    second = await client.publish("new", kind=30_001, tags=[("d", d)])
    coordinate = f"30001:{client.key.node}:{d}"
    assert (await client.address(coordinate)).event == second.event
    history = await client.history(coordinate)
    assert [stored.event for stored in history.events] == [first.event, second.event]


async def test_unknown_event_and_unknown_address_have_different_errors(house: House) -> None:
    client = house.client()
    with pytest.raises(Refused) as refused:
        await client.get("0" * 64)
    assert refused.value.code == "event_unknown"
    with pytest.raises(Refused) as refused:
        await client.address(f"30001:{client.key.node}:nothing")
    assert refused.value.code == "address_unknown"


async def test_coordinate_of_a_normal_kind_is_refused(house: House) -> None:
    with pytest.raises(Refused) as refused:
        await house.client().address(f"1:{house.client().key.node}:x")
    assert refused.value.code == "coordinate_invalid"


async def test_filter_value_with_a_comma_is_refused_with_the_alternative(house: House) -> None:
    with pytest.raises(Refused) as refused:
        await house.client().query({"#t": ["a,b"]})
    assert refused.value.code == "filter_invalid"
    assert "subscribe" in str(refused.value)


async def test_token_is_renewed_after_a_restart_of_the_relay(house: House) -> None:
    client = house.client()
    await publish(client, "a")
    assert await client.count({"kinds": [1]}) == 1
    await house.down()
    await house.up()
    assert await client.count({"kinds": [1]}) == 1


async def test_login_goes_on_with_a_new_challenge_after_a_restart_of_the_relay(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert house.server is not None
    before_restart = open_challenges(system_clock(), house.server.key, None)
    issue = Challenges.issue
    given: list[Challenge] = []

    def issue_first_before_the_restart(challenges: Challenges, holder: str) -> Challenge:
        given.append(issue(challenges if given else before_restart, holder))
        return given[-1]

    monkeypatch.setattr(Challenges, "issue", issue_first_before_the_restart)
    assert await house.client().count({"kinds": [1]}) == 0
    assert len(given) == 2


async def test_reads_from_a_stopped_relay_raise_relay_unreachable(house: House) -> None:
    client = house.client()
    await house.down()
    with pytest.raises(PosthouseError) as refused:
        await client.query({})
    assert refused.value.code == "relay_unreachable"
    assert refused.value.fields["reason"] == "Connection refused"


async def test_info_needs_no_authentication_and_pins_nothing(house: House) -> None:
    client = house.client()
    assert house.server is not None
    assert (await client.info())["relay"] == house.server.key.node
    assert client.relay is None
    assert await client.identify() == client.relay == house.server.key.node
