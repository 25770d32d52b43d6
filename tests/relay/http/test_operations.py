"""What operators ask: health, info, metrics, journal, pruning, the contract."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

from posthouse.http.openapi import encode_document
from posthouse.model.clock import FakeClock
from posthouse.model.metrics import METRICS
from posthouse.model.rate import Rate
from posthouse.relay.openapi import ROUTES, describe_routes
from posthouse.relay.wire.accept_results import Committed
from tests.relay.edge import Author, Edge, running

CONTRACT = Path(__file__).parents[3] / "docs" / "openapi.json"


async def test_info_shows_the_limits_of_the_protocol(edge: Edge) -> None:
    info = (await edge.get("/v1/info")).value
    assert info["relay"] == edge.relay
    assert info["is_test_clock"] is False
    expected = {"event_bytes": 131_072, "tags": 200, "tag_value_bytes": 8_192, "created_at_ahead_s": 900}
    assert expected.items() <= info["limits"].items()


async def test_every_declared_metric_is_shown(edge: Edge, author: Author) -> None:
    await edge.publish(author.event())
    token = await edge.token(edge.admin)
    async with edge.stream(author) as stream:
        await stream.send("REQ", "s", {})
        await stream.until("EOSE")
        text = (await edge.get("/metrics", token)).body.decode()
    for metric in METRICS:
        assert f"# HELP {metric.name} " in text, metric.name
    assert 'posthouse_relay_events_accepted_total{outcome="stored"} 1.0' in text
    assert "posthouse_relay_streams 1.0" in text
    assert "posthouse_relay_subscriptions 1.0" in text
    assert 'posthouse_relay_commands_total{verb="REQ"} 1.0' in text
    assert 'posthouse_relay_request_seconds_bucket{le="+Inf"}' in text
    commits, stored, free = (
        float(text.partition(f"\nposthouse_relay_{name} ")[2].split()[0])
        for name in ("commit_seconds_count", "store_bytes", "disk_free_bytes")
    )
    assert commits >= 1 and stored > 4_096 and free > 0


async def test_event_lag_is_the_time_from_a_commit_to_the_last_write_to_a_subscriber(tmp_path: Path) -> None:
    clock = FakeClock()
    author = Author(clock)
    async with running(tmp_path / "relay", clock=clock) as edge:
        live = edge.server.context.live
        publish = live.publish

        def publish_slowly(batch: Sequence[Committed]) -> None:
            clock.advance(0.2)
            publish(batch)

        edge.server.context.engine.listen(publish_slowly)
        await edge.publish(author.event())
        text = (await edge.get("/metrics", await edge.token(edge.admin))).body.decode()
    assert 'posthouse_relay_event_lag_seconds_bucket{le="0.1"} 0.0' in text
    assert 'posthouse_relay_event_lag_seconds_bucket{le="0.25"} 1.0' in text
    assert 'posthouse_relay_commit_seconds_bucket{le="0.001"} 1.0' in text, "the commit took none of that time"


async def test_a_relay_that_is_alone_leads_and_knows_no_others(edge: Edge, author: Author) -> None:
    assert (await edge.get("/v1/cluster", await edge.token(author))).code == "right_missing"
    token = await edge.token(edge.admin)
    alone: dict[str, object] = {"relay_id": None, "leader": None, "term": None, "relays": []}
    assert (await edge.get("/v1/cluster", token)).value == alone
    text = (await edge.get("/metrics", token)).body.decode()
    assert "posthouse_relay_leader 1.0" in text and "posthouse_relay_cluster_relays 1.0" in text


def test_metrics_are_named_by_their_unit() -> None:
    endings = {"counter": "_total", "histogram": "_seconds"}
    for metric in METRICS:
        assert metric.name.startswith("posthouse_")
        assert metric.name.endswith(endings.get(metric.kind, "")), metric.name
        assert metric.kind == "gauge" or metric.help.endswith(".")
        assert not (metric.kind == "gauge" and metric.name.endswith("_total"))


async def test_journal_is_for_administrators_and_goes_on_from_its_cursor(edge: Edge, author: Author) -> None:
    token = await edge.token(edge.admin)
    assert (await edge.get("/v1/journal", await edge.token(author))).code == "right_missing"
    await edge.publish(author.event())
    first = (await edge.get("/v1/journal?limit=1", token)).value
    rest = (await edge.get(f"/v1/journal?after={first['cursor']}", token)).value
    seqs = [record["seq"] for record in first["records"] + rest["records"]]
    assert seqs == list(range(1, len(seqs) + 1))
    assert rest["records"][-1]["type"] == "event.accepted"
    only = (await edge.get("/v1/journal?types=event.accepted", token)).value["records"]
    assert [record["seq"] for record in only] == seqs[-1:]
    after = (await edge.get(f"/v1/journal?after={rest['cursor']}", token)).value
    assert after == {"records": [], "cursor": rest["cursor"]}


async def test_journal_is_read_newest_first_page_by_page(edge: Edge, author: Author) -> None:
    token = await edge.token(edge.admin)
    assert (await edge.get("/v1/journal?order=desc", await edge.token(author))).code == "right_missing"
    for _ in range(3):
        await edge.publish(author.event())
    oldest_first = [each["seq"] for each in (await edge.get("/v1/journal", token)).value["records"]]
    seen: list[int] = []
    page = (await edge.get("/v1/journal?order=desc&limit=2", token)).value
    while page["cursor"] is not None:
        seen += [each["seq"] for each in page["records"]]
        page = (await edge.get(f"/v1/journal?order=desc&limit=2&before={page['cursor']}", token)).value
    seen += [each["seq"] for each in page["records"]]
    assert seen == oldest_first[::-1]
    only = (await edge.get("/v1/journal?order=desc&types=event.accepted", token)).value
    assert ([each["type"] for each in only["records"]], only["cursor"]) == (["event.accepted"] * 3, None)
    cursor = (await edge.get("/v1/journal?limit=1", token)).value["cursor"]
    for mixed in (f"order=desc&after={cursor}", f"before={cursor}"):
        assert (await edge.get(f"/v1/journal?{mixed}", token)).code == "parameter_invalid"


async def test_metrics_are_for_admins_of_the_relay(edge: Edge, author: Author) -> None:
    assert (await edge.get("/metrics", await edge.token(edge.admin))).status == 200
    member = await edge.get("/metrics", await edge.token(author))
    assert (member.status, member.code) == (403, "right_missing")
    assert (await edge.get("/metrics")).status == 401


async def test_prune_refuses_a_digest_that_is_not_the_rows(edge: Edge, author: Author) -> None:
    token = await edge.token(edge.admin)
    epoch = (await edge.get("/v1/info")).value["epoch"]
    body = {"epoch": epoch, "from_seq": 1, "to_seq": 1, "digest": "0" * 64}
    refused = await edge.post("/v1/admin/prune", body, token)
    assert (refused.status, refused.code) == (409, "digest_mismatch")
    assert set(refused.value) == {"type", "title", "status", "code", "detail", "hint", "from_seq", "to_seq"}
    assert not re.search("[0-9a-f]{64}", str(refused.value)), "the digest that it expected is not told"
    assert (await edge.post("/v1/admin/prune", body, await edge.token(author))).status == 403
    assert (await edge.post("/v1/admin/prune", body | {"epoch": "x"}, token)).status == 409
    assert (await edge.post("/v1/admin/prune", body | {"from_seq": 0}, token)).code == "body_invalid"


async def test_export_is_for_administrators_and_known_feeds(edge: Edge, author: Author) -> None:
    assert (await edge.get("/v1/export/journal", await edge.token(author))).code == "right_missing"
    assert (await edge.get("/v1/export/nothing", await edge.token(edge.admin))).code == "feed_unknown"


def test_committed_contract_equals_the_document_of_the_routes() -> None:
    assert CONTRACT.read_bytes() == encode_document(describe_routes(ROUTES)), "run python -m posthouse.relay.openapi"


async def test_relay_serves_the_contract(edge: Edge) -> None:
    assert (await edge.get("/openapi.json")).body == CONTRACT.read_bytes()


async def test_head_is_get_without_a_body(edge: Edge) -> None:
    reply = await edge.send("HEAD", "/v1/info")
    assert (reply.status, reply.body) == (200, b"")


async def test_unknown_paths_and_wrong_methods_are_problems(edge: Edge) -> None:
    for path in ("/", "/v1", "/v1/", "/v1/events/", "//", "/v1/nothing", "/v1/events/a/b/c/d/e/f", "/V1/info"):
        reply = await edge.get(path)
        assert (reply.status, reply.code) == (404, "route_unknown"), path
    for method, path, allowed in (
        ("DELETE", "/v1/events", {"POST", "GET"}),
        ("PUT", "/v1/info", {"GET"}),
        ("OPTIONS", "/healthz", {"GET"}),
        ("POST", "/v1/events/count", {"GET"}),
    ):
        reply = await edge.send(method, path)
        assert (reply.status, reply.code) == (405, "method_not_allowed"), path
        assert set(reply.headers["allow"].split(", ")) == allowed


async def test_key_that_is_too_fast_gets_a_time_to_retry(tmp_path: Path) -> None:
    author, other = Author(), Author()
    async with running(tmp_path / "relay", event_rate=Rate(1, 3)) as edge:
        replies = [await edge.post("/v1/events", author.event()) for _ in range(4)]
        assert [reply.status for reply in replies] == [201, 201, 201, 429]
        assert replies[-1].code == "rate_limited"
        assert int(replies[-1].headers["retry-after"]) >= 1
        assert (await edge.post("/v1/events", other.event())).status == 201


async def test_relay_whose_store_is_closed_is_alive_but_not_ready(edge: Edge, author: Author) -> None:
    await asyncio.to_thread(edge.server.context.engine.store.close)
    assert (await edge.get("/healthz")).status == 200
    ready = await edge.get("/readyz")
    assert (ready.status, ready.code) == (503, "relay_not_ready")
    assert (await edge.post("/v1/events", author.event())).status == 503


async def test_null_is_no_value_of_a_parameter(edge: Edge) -> None:
    refused = await edge.get("/v1/journal?limit=null", await edge.token(edge.admin))
    assert (refused.code, refused.value["name"]) == ("parameter_invalid", "limit")


async def test_whole_number_with_a_fraction_of_zero_is_an_integer_but_not_in_a_signed_event(edge: Edge) -> None:
    token = await edge.token(edge.admin)
    made = await edge.send("POST", "/v1/meshes/main/invites", data=b'{"uses": 2.0}', token=token)
    assert made.status == 201
    refused = await edge.send("POST", "/v1/meshes/main/invites", data=b'{"uses": 2.5}', token=token)
    assert refused.code == "body_invalid"
    given = (await edge.post("/v1/auth/challenge", {"pubkey": edge.admin.node})).value
    proof = edge.admin.proof(given["relay"], ("challenge", given["challenge"]), at_ns=10**15)
    proof["created_at_ns"] = float(proof["created_at_ns"])
    assert (await edge.post("/v1/auth", {"event": proof})).code == "body_invalid"
