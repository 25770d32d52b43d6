"""Traces: one message is one trace over client, relay, daemon and agent, as a real collector receives it by OTLP."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider

from posthouse.cli.daemon_start import StartOptions, daemon_settings
from posthouse.cli.options import DaemonOptions
from posthouse.client.daemon import AsyncDaemonClient, DaemonAddress
from posthouse.model.errors import PosthouseError
from posthouse.tracing import current_traceparent, open_tracer, otlp_endpoint, valid_traceparent
from tests.client.house import ADMIN, QUICK, open_house
from tests.client.waiting import PATIENCE_S, take
from tests.daemon.hosts import eventually, host_at

ROOT = Path(__file__).resolve().parents[1]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = PARENT[:-2] + "00"


@dataclass
class SeenSpan:
    """A span as the collector received it."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, str]
    error: str


@dataclass
class Collector:
    """A receiver of OTLP over HTTP that decodes what it gets."""

    url: str = ""
    spans: list[SeenSpan] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)

    async def receive(self, request: web.Request) -> web.Response:
        assert request.path == "/v1/traces" and request.content_type == "application/x-protobuf"
        self.headers.append(request.headers.get("x-token", ""))
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [_seen(named["service.name"], span) for span in scope.spans]
        return web.Response(body=b"", content_type="application/x-protobuf")

    def named(self, service: str, name: str) -> list[SeenSpan]:
        return [each for each in self.spans if (each.service, each.name) == (service, name)]


def _seen(service: str, span: Any) -> SeenSpan:
    attributes = {each.key: each.value.string_value or str(each.value.int_value) for each in span.attributes}
    assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
    return SeenSpan(
        service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), attributes,
        span.status.message,
    )  # fmt: skip


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application()
    app.add_routes([web.post("/v1/traces", collector.receive)])
    async with TestServer(app, host="127.0.0.1") as server:
        collector.url = f"http://127.0.0.1:{server.port}"
        yield collector


async def test_a_message_is_one_trace_over_daemon_relay_daemon_and_agent(tmp_path: Path) -> None:
    async with collecting() as collector, open_house(tmp_path, otlp_url=collector.url) as house:
        admin = house.client(ADMIN)
        async with host_at(house, "a", otlp_url=collector.url) as a, host_at(house, "b", otlp_url=collector.url) as b:
            for host, name in ((a, "alpha"), (b, "beta")):
                await admin.meshes.add_member("main", host.node, name)
            planner, builder = await a.add_agent("planner"), await b.add_agent("builder")
            message = {"to": "builder@beta", "message": "secret words"}
            headers = {"Posthouse-Agent": "planner", "traceparent": PARENT}
            send = partial(a.ask, "POST", "/v1/send", json=message, headers=headers)
            await eventually(send, lambda said: said.status == 202)  # once beta has shown its agents
            await builder.until_bodies(1)
            [item] = (await builder.get("/v1/inbox", limit=10))["items"]
            assert valid_traceparent(item["traceparent"]) is not None
            await builder.post("/v1/inbox/seen", ids=[item["id"]])
            answer = await builder.send("planner@alpha", "done", reply_to_id=item["message_id"])
            assert answer.status in (200, 202), answer.body
            await planner.until_bodies(1)
    sends = [each for each in collector.named("posthouse-daemon", "send") if not each.error]
    assert {each.trace for each in collector.spans} == {PARENT[3:35]}, "the answer continues the trace"
    first, reply = sorted(sends, key=lambda each: each.parent != PARENT[36:52])
    assert (first.parent, first.attributes["posthouse.agent"]) == (PARENT[36:52], "planner")
    assert reply.parent == first.span and reply.attributes["posthouse.agent"] == "builder"
    for service, name in (
        ("posthouse-daemon", "publish"),
        ("posthouse-relay", "accept"),
        ("posthouse-relay", "deliver"),
        ("posthouse-daemon", "receive"),
        ("posthouse-daemon", "read"),
    ):
        below = [each for each in collector.named(service, name) if each.parent == first.span]
        assert len(below) == 1, (service, name)
        assert below[0].attributes["posthouse.mesh"] == "main" and below[0].error == ""
    assert "secret words" not in str(collector.spans)


async def test_a_client_traces_what_it_sends_receives_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=abc")
    async with collecting() as collector, open_house(tmp_path, otlp_url=collector.url) as house:
        tracer = open_tracer(collector.url, "my-agent")
        ann, ben = (house.client(options=replace(QUICK, tracer=tracer)) for _ in range(2))
        async with await ben.receive() as mailbox:
            sent = await ann.send(ben.key.node, "hello")
            [delivery] = await take(mailbox, 1)
            assert delivery.traceparent == sent.event.value("traceparent")
            await mailbox.confirm(delivery)
            await ann.send(ben.key.node, "bad")
            [delivery] = await take(mailbox, 1)
            await mailbox.reject(delivery, "unknown schema")
            await ann.send(ben.key.node, "left behind")
            await take(mailbox, 1)
        with pytest.raises(PosthouseError):
            await ann.send(ben.key.node, "again", client_message_id=sent.client_message_id)
        await asyncio.to_thread(tracer.close)
    roots = collector.named("my-agent", "send")
    assert [each.error for each in roots] == ["", "", "", "idempotency_key_reused"]
    received = {each.parent: each.error for each in collector.named("my-agent", "receive")}
    assert received == {roots[0].span: "", roots[1].span: "rejected"}
    delivered = {each.parent: each.error for each in collector.named("posthouse-relay", "deliver")}
    assert delivered == {roots[0].span: "", roots[1].span: "rejected", roots[2].span: "connection_ended"}
    assert set(collector.headers) == {"abc"}


async def test_a_sender_decides_that_its_message_is_not_recorded(tmp_path: Path) -> None:
    async with collecting() as collector, open_house(tmp_path, otlp_url=collector.url) as house:
        tracer = open_tracer(collector.url, "my-agent", ratio=0.0)
        ann = house.client(options=replace(QUICK, tracer=tracer))
        sent = await ann.send(ann.key.node, "one")
        assert int(str(sent.event.value("traceparent"))[-2:], 16) & 1 == 0, "the flag `sampled` is not set"
        await ann.send(ann.key.node, "two", traceparent=UNSAMPLED)
        await ann.send(ann.key.node, "three", traceparent=PARENT)
        await asyncio.to_thread(tracer.close)
        await house.close()
    assert {each.trace for each in collector.spans} == {PARENT[3:35]}


async def test_programs_that_use_opentelemetry_hand_their_span_to_client_and_daemon(tmp_path: Path) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    async with open_house(tmp_path) as house, host_at(house, "a") as host:
        client = house.client()
        await house.client(ADMIN).meshes.add_member("main", host.node, "alpha")
        daemon = AsyncDaemonClient(DaemonAddress(host.settings.directory), agent="")
        with provider.get_tracer("program").start_as_current_span("work"):
            span = current_traceparent()
            sent = await client.send(client.key.node, "x")
            await daemon.send("alpha", "to myself")
        await daemon.close()
        assert span is not None and sent.event.value("traceparent") == span
        await host.until_bodies(1)
        [item] = (await host.get("/v1/inbox", limit=10))["items"]
        assert item["traceparent"] == span, "a daemon that traces nothing passes it on"
        assert (await client.send(client.key.node, "y")).event.value("traceparent") is None
        with pytest.raises(PosthouseError, match="traceparent"):
            await client.send(client.key.node, "z", traceparent="no")


async def test_a_message_with_a_malformed_traceparent_is_delivered_and_not_traced(tmp_path: Path) -> None:
    async with collecting() as collector, open_house(tmp_path, otlp_url=collector.url) as house:
        client = house.client()
        for number, text in enumerate(("", "00-x", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "x" * 4_000)):
            tags = [("c", str(number)), ("p", client.key.node), ("traceparent", text)]
            await client.publish("x", kind=1000, tags=tags)
        await house.close()
    assert collector.spans == []


def test_a_collector_that_is_away_costs_nothing_but_spans(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_house(tmp_path, otlp_url="http://127.0.0.1:9") as house:
            client = house.client()
            await client.send(client.key.node, "x", traceparent=PARENT)

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:4318", "ftp://x", "http://", "http://u:p@h:1", "http://h:99999", "http://h/#x"]
)
def test_an_address_that_is_no_collector_is_refused(url: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        otlp_endpoint(url)
    assert refused.value.code == "otlp_url_invalid"


def test_a_url_without_a_path_gets_the_path_of_traces() -> None:
    assert otlp_endpoint("http://h:4318") == otlp_endpoint("http://h:4318/") == "http://h:4318/v1/traces"
    assert otlp_endpoint("https://h/otlp/v1/traces") == "https://h/otlp/v1/traces"


def test_without_the_extra_the_error_names_it_and_nothing_is_imported() -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "from posthouse import Client, DaemonClient\n"
        "from posthouse.tracing import open_tracer, current_traceparent\n"
        "assert current_traceparent() is None\n"
        "loaded = [name for name in sys.modules if name.startswith('opentelemetry') and name != 'opentelemetry.sdk']\n"
        "assert not loaded, loaded\n"
        "try:\n"
        "    open_tracer('http://127.0.0.1:4318', 'x')\n"
        "except Exception as failure:\n"
        "    print(failure.code, failure.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": "src"}, timeout=60
    )
    assert "extra_missing" in done.stdout and "pip install" in done.stdout and "[otel]'" in done.stdout, done.stderr


@pytest.mark.parametrize("source", ["file", "environment", "flag"])
def test_settings_of_a_daemon_name_the_collector_and_the_part_that_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("POSTHOUSE_HOME", str(home))
    flags = {}
    if source == "file":
        (home / "config.toml").write_text('[daemon]\notlp_url = "http://127.0.0.1:9"\ntrace_ratio = 0.25\n')
    elif source == "environment":
        monkeypatch.setenv("POSTHOUSE_DAEMON_OTLP_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("POSTHOUSE_DAEMON_TRACE_RATIO", "0.25")
    else:
        flags = {"daemon.otlp_url": "http://127.0.0.1:9", "daemon.trace_ratio": 0.25}
    options = StartOptions(DaemonOptions(), "http://127.0.0.1:1", is_ephemeral=False, ttl_s=None, tcp="off")
    settings, _values = daemon_settings(options, flags)
    assert (settings.otlp_url, settings.trace_ratio) == ("http://127.0.0.1:9", 0.25)
