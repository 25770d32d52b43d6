"""Outgoing webhooks against real receivers, on each store: order, signatures, failures, cursors, rights."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from nacl.signing import VerifyKey
from standardwebhooks import Webhook

from posthouse.model.clock import FakeClock, system_clock
from posthouse.relay.webhooks import dispatcher
from posthouse.relay.wire.webhook_rows import WebhookRow
from tests.relay.edge import Author, Edge, running
from tests.relay.webhooks.receivers import (
    LOOPBACK,
    Receiver,
    add_webhook,
    receiving,
    records_of,
    refused,
    state_of,
    until_state,
)

DAY_S = 86_400


async def test_committed_events_come_in_order_and_the_public_library_verifies_them(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    added = await add_webhook(edge, author, receiver.url)
    await edge.publish(*(author.event(1, str(number)) for number in range(20)))
    requests = await receiver.until(20)
    assert receiver.contents == [str(number) for number in range(20)]
    verifier = Webhook(added["verification_key"])
    for each in requests:
        payload = verifier.verify(each.body, each.headers)
        assert payload["type"] == "event.accepted"
        assert payload["data"]["event"]["id"] == each.id
    with pytest.raises(Exception, match="signature"):
        verifier.verify(requests[0].body + b" ", requests[0].headers)


async def test_a_given_secret_signs_and_an_ed25519_key_verifies_with_nacl(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    secret = "whsec_" + base64.b64encode(b"s" * 32).decode()
    added = await add_webhook(edge, author, receiver.url, secret=secret)
    assert added["verification_key"] == secret
    await edge.publish(author.event(1, "first"))
    [first] = await receiver.until(1)
    Webhook(secret).verify(first.body, first.headers)
    async with receiving() as other:
        asymmetric = await add_webhook(edge, author, other.url, signing="ed25519")
        await edge.publish(author.event(1, "second"))
        [second] = await other.until(1)
    key = VerifyKey(base64.b64decode(asymmetric["verification_key"].removeprefix("whpk_")))
    scheme, _, signature = second.headers["webhook-signature"].partition(",")
    assert scheme == "v1a"
    signed = f"{second.id}.{second.headers['webhook-timestamp']}.".encode() + second.body
    key.verify(signed, base64.b64decode(signature))


async def test_only_events_that_match_a_filter_are_sent(edge: Edge, author: Author, receiver: Receiver) -> None:
    await add_webhook(edge, author, receiver.url, filters=[{"kinds": [7]}, {"kinds": [1], "#x": ["y"]}])
    await edge.publish(
        author.event(1, "no"), author.event(7, "seven"), author.event(1, "tag", [("x", "y")]), author.event(8, "no")
    )
    await receiver.until(2)
    assert receiver.contents == ["seven", "tag"]


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_a_failing_receiver_gets_the_same_event_again_until_it_takes_it(
    edge: Edge, author: Author, receiver: Receiver, status: int
) -> None:
    added = await add_webhook(edge, author, receiver.url)
    receiver.answer = lambda _request: status if len(receiver.requests) < 4 else 200
    await edge.publish(author.event(1, "first"), author.event(1, "second"))
    await receiver.until(5)
    assert receiver.contents == ["first", "first", "first", "first", "second"]
    assert len({each.id for each in receiver.requests}) == 2
    seen = await until_state(edge, author, added["webhook"]["id"], lambda seen: seen["webhook"]["last_sent_at_ns"])
    assert (seen["webhook"]["failing_since_ns"], seen["webhook"]["last_error"]) == (None, None)


async def test_a_refused_event_is_parked_after_five_tries_and_the_next_one_is_sent(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    added = await add_webhook(edge, author, receiver.url)
    receiver.answer = lambda request: 422 if b"poison" in request.body else 200
    await edge.publish(author.event(1, "poison"), author.event(1, "good"))
    await receiver.until(6)
    assert receiver.contents == ["poison"] * 5 + ["good"]
    seen = await until_state(edge, author, added["webhook"]["id"], lambda seen: len(seen["parked"]) == 1)
    assert seen["parked"][0]["reason"] == "status 422"
    [record] = await records_of(edge, "webhook.parked")
    assert record["ref"] == added["webhook"]["id"]


async def test_retry_sends_parked_events_again(edge: Edge, author: Author, receiver: Receiver) -> None:
    added = await add_webhook(edge, author, receiver.url)
    webhook_id = added["webhook"]["id"]
    receiver.answer = lambda _request: 400
    await edge.publish(author.event(1, "poison"))
    await until_state(edge, author, webhook_id, lambda seen: len(seen["parked"]) == 1)
    receiver.answer = lambda _request: 200
    receiver.requests.clear()
    reply = await edge.post(f"/v1/webhooks/{webhook_id}/retry", {}, await edge.token(author))
    assert reply.status == 200, reply.body
    await receiver.until(1)
    assert receiver.contents == ["poison"]
    await until_state(edge, author, webhook_id, lambda seen: seen["parked"] == [])


async def test_410_ends_a_webhook_and_redirects_are_not_followed(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    added = await add_webhook(edge, author, receiver.url)
    async with receiving() as elsewhere:
        receiver.headers = {"Location": elsewhere.url}
        receiver.answer = lambda request: 302 if b"moved" in request.body else 410
        await edge.publish(author.event(1, "moved"), author.event(1, "gone"), author.event(1, "never"))
        seen = await until_state(edge, author, added["webhook"]["id"], lambda seen: seen["webhook"]["state"] == "ended")
        assert elsewhere.requests == []
    assert receiver.contents == ["moved"] * 5 + ["gone"]
    assert seen["parked"][0]["reason"] == "status 302"
    assert len(await records_of(edge, "webhook.ended")) == 1


async def test_after_a_day_of_failure_a_webhook_is_suspended_and_retry_continues_at_its_cursor(
    tmp_path: Path, each_store: str, receiver: Receiver
) -> None:
    clock = FakeClock(system_clock().wall_ns())
    async with running(tmp_path / "relay", clock=clock, sending=LOOPBACK) as edge:
        author = Author(clock)
        added = await add_webhook(edge, author, receiver.url)
        webhook_id = added["webhook"]["id"]
        receiver.answer = lambda _request: 500
        await edge.publish(author.event(1, "first"))
        await receiver.until(1)
        await until_state(edge, author, webhook_id, lambda seen: seen["webhook"]["attempts"] >= 1)
        clock.advance(DAY_S + 1)
        await until_state(edge, author, webhook_id, lambda seen: seen["webhook"]["state"] == "suspended")
        receiver.answer = lambda _request: 200
        receiver.requests.clear()
        await edge.publish(author.event(1, "second"))
        await edge.post(f"/v1/webhooks/{webhook_id}/retry", {}, await edge.token(author))
        await receiver.until(2)
        assert receiver.contents == ["first", "second"]


async def test_a_webhook_continues_after_a_restart_where_it_was(tmp_path: Path, each_store: str) -> None:
    author = Author()
    async with receiving() as receiver:
        async with running(tmp_path / "relay", sending=LOOPBACK) as edge:
            await add_webhook(edge, author, receiver.url)
            await edge.publish(author.event(1, "before"))
            await receiver.until(1)
            receiver.answer = lambda _request: 500
            await edge.publish(author.event(1, "between"))
            await receiver.until(2)
        receiver.answer = lambda _request: 200
        receiver.requests.clear()
        async with running(tmp_path / "relay", sending=LOOPBACK) as edge:
            await edge.publish(author.event(1, "after"))
            await receiver.until(2)
        assert receiver.contents == ["between", "after"]


async def test_replay_sends_again_what_was_committed_since_a_time_under_the_same_ids(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    added = await add_webhook(edge, author, receiver.url)
    webhook_id = added["webhook"]["id"]
    await edge.publish(author.event(1, "old"))
    await receiver.until(1)
    since_ns = system_clock().wall_ns()
    await edge.publish(author.event(1, "new"))
    await receiver.until(2)
    await until_state(edge, author, webhook_id, lambda seen: seen["webhook"]["attempts"] == 0)
    reply = await edge.post(f"/v1/webhooks/{webhook_id}/replay", {"since_ns": since_ns}, await edge.token(author))
    assert reply.status == 200, reply.body
    await receiver.until(3)
    assert receiver.contents == ["old", "new", "new"]
    assert receiver.requests[1].id == receiver.requests[2].id
    assert receiver.requests[1].body == receiver.requests[2].body


async def test_direct_messages_of_others_are_not_sent_and_sealed_content_stays_sealed(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    alice, bob = Author(), Author()
    await add_webhook(edge, author, receiver.url)
    await edge.publish(
        alice.event(1000, "c2VhbGVk", [("p", bob.node), ("c", "1"), ("enc", "box")]),
        alice.event(1000, "c2VhbGVkIHRvbw==", [("p", author.node), ("c", "2"), ("enc", "box")]),
    )
    [request] = await receiver.until(1)
    assert request.value["type"] == "message.accepted"
    assert receiver.contents == ["c2VhbGVkIHRvbw=="]


async def test_a_webhook_whose_creator_lost_its_right_is_suspended_before_it_sends(
    edge: Edge, receiver: Receiver
) -> None:
    member, admin_token = Author(), await edge.token(edge.admin)
    await edge.post("/v1/meshes", {"name": "team"}, admin_token)
    await edge.post("/v1/meshes/team/members", {"node": member.node, "name": "member"}, admin_token)
    added = await add_webhook(edge, member, receiver.url, mesh="team")
    await edge.publish(edge.admin.event(1, "one", [("mesh", "team")]))
    await receiver.until(1)
    await edge.send("DELETE", f"/v1/meshes/team/members?node={member.node}", token=admin_token)
    await edge.publish(edge.admin.event(1, "secret", [("mesh", "team")]))
    seen = await until_state(
        edge, edge.admin, added["webhook"]["id"], lambda seen: seen["webhook"]["state"] == "suspended"
    )
    assert "no right" in seen["webhook"]["last_error"]
    assert receiver.contents == ["one"]


async def test_events_of_another_mesh_are_not_sent(edge: Edge, receiver: Receiver) -> None:
    await edge.post("/v1/meshes", {"name": "team"}, await edge.token(edge.admin))
    await add_webhook(edge, edge.admin, receiver.url, mesh="team")
    await edge.publish(edge.admin.event(1, "main"), edge.admin.event(1, "team", [("mesh", "team")]))
    await receiver.until(1)
    assert receiver.contents == ["team"]
    reply = await refused(edge, edge.admin, receiver.url, mesh="team", filters=[{"mesh": "main"}])
    assert reply.code == "value_invalid"


async def test_journal_records_are_sent_to_admins_only(edge: Edge, author: Author, receiver: Receiver) -> None:
    reply = await refused(edge, author, receiver.url, record_types=["lock.broken"])
    assert reply.code == "right_missing"
    await add_webhook(edge, edge.admin, receiver.url, record_types=["lock.broken"])
    token = await edge.token(author)
    await edge.post("/v1/locks/acquire", {"resource": "db", "lease_ms": 60_000}, token)
    await edge.post("/v1/locks/break", {"resource": "db"}, await edge.token(edge.admin))
    [request] = await receiver.until(1)
    assert (request.value["type"], request.value["data"]["ref"]) == ("lock.broken", "db")
    assert (await refused(edge, edge.admin, receiver.url, record_types=["no.such"])).code == "value_invalid"


async def test_a_webhook_is_seen_and_managed_by_its_creator_and_admins_only_and_never_shows_its_secret(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    added = await add_webhook(edge, author, receiver.url)
    webhook_id, stranger = added["webhook"]["id"], Author()
    stranger_token = await edge.token(stranger)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/retry")):
        reply = await edge.send(method, f"/v1/webhooks/{webhook_id}{path}", token=stranger_token)
        assert reply.code == "webhook_unknown"
    assert (await edge.get("/v1/webhooks", stranger_token)).value == {"webhooks": [], "incoming": []}
    listed = await edge.get("/v1/webhooks", await edge.token(edge.admin))
    assert [each["id"] for each in listed.value["webhooks"]] == [webhook_id]
    shown = json.dumps([listed.value, await state_of(edge, author, webhook_id)])
    assert added["verification_key"] not in shown
    assert added["verification_key"].removeprefix("whsec_") not in shown


async def test_a_removed_webhook_sends_nothing_more(edge: Edge, author: Author, receiver: Receiver) -> None:
    added = await add_webhook(edge, author, receiver.url)
    token = await edge.token(author)
    assert (await edge.send("DELETE", f"/v1/webhooks/{added['webhook']['id']}", token=token)).status == 200
    other = await add_webhook(edge, author, receiver.url)
    await edge.publish(author.event(1, "once"))
    await until_state(edge, author, other["webhook"]["id"], lambda seen: seen["webhook"]["last_sent_at_ns"])
    assert receiver.contents == ["once"]
    assert [record["type"] for record in await records_of(edge, "webhook.added,webhook.removed")] == [
        "webhook.added",
        "webhook.removed",
        "webhook.added",
    ]


async def test_the_number_of_webhooks_of_a_mesh_is_bounded(tmp_path: Path, receiver: Receiver) -> None:
    async with running(tmp_path / "relay", sending=LOOPBACK, webhooks_per_mesh=1) as edge:
        await add_webhook(edge, edge.admin, receiver.url)
        assert (await refused(edge, edge.admin, receiver.url)).code == "mesh_row_limit"


async def test_metrics_show_the_lag_of_webhooks_and_count_their_requests(
    edge: Edge, author: Author, receiver: Receiver
) -> None:
    receiver.answer = lambda _request: 500
    await add_webhook(edge, author, receiver.url)
    await edge.publish(author.event(1, "late"))
    await receiver.until(2)
    text = (await edge.get("/metrics", await edge.token(edge.admin))).body.decode()
    lag = next(line for line in text.splitlines() if line.startswith("posthouse_relay_webhook_lag_seconds "))
    assert float(lag.split()[1]) > 0
    assert "posthouse_relay_webhooks 1.0" in text
    assert 'posthouse_relay_webhook_sends_total{outcome="retry"}' in text


async def test_commits_do_not_read_the_webhooks_of_a_relay_that_has_none(
    edge: Edge, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhooks = edge.server.context.engine.store.webhooks
    reads = 0

    async def counted() -> list[WebhookRow]:
        nonlocal reads
        reads += 1
        return []

    monkeypatch.setattr(dispatcher, "POLL_S", 60.0)
    monkeypatch.setattr(webhooks, "all", counted)
    for number in range(20):
        await edge.publish(author.event(1, str(number)))
    assert reads <= 1  # the look that was due when the test began
