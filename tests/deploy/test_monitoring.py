"""The alert rules and the dashboard in deploy/: they name metrics that exist, and a real Prometheus loads them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from shutil import which
from typing import Any

import aiohttp
import pytest
import yaml

from posthouse.model.metrics import METRICS
from posthouse.relay.listen import ListenAddress
from tests.client.house import ADMIN, House, open_house
from tests.relay.cluster.relays import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "posthouse-relay.json"
PATIENCE_S = 60
PROMETHEUS = which("prometheus")
needs_prometheus = pytest.mark.skipif(
    PROMETHEUS is None, reason="prometheus is not installed: run scripts/setup as root, or install it"
)


def rules() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return found


def dashboard_queries() -> Iterator[str]:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def series_names() -> set[str]:
    """Return the name of every series that a relay shows."""
    histogram = ("_bucket", "_sum", "_count")
    return {m.name + end for m in METRICS for end in (histogram if m.kind == "histogram" else ("",))}


def test_rules_and_dashboard_name_metrics_and_labels_that_a_relay_has() -> None:
    labels = {label for metric in METRICS for label in metric.labels} | {"instance", "job", "le"}
    queries = [rule["expr"] for rule in rules()] + list(dashboard_queries())
    assert len(queries) > 40
    for query in queries:
        named = set(re.findall(r"posthouse_\w+", query))
        assert named <= series_names(), query
        grouped = {each.strip() for found in re.findall(r"by \(([^)]*)\)", query) for each in found.split(",")}
        assert grouped <= labels, query


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    root = DEPLOY.parent
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"]["summary"] and rule["annotations"]["description"], rule["alert"]
        for page in re.findall(r"docs/[\w/.-]+\.md", rule["annotations"]["description"]):
            assert (root / page).exists(), page


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[str]:
    """Run Prometheus with the rules of deploy/ on one relay; yield its address."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    path, address = folder / "prometheus.yml", f"127.0.0.1:{free_port()}"
    path.write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS or "", f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}", "--log.level=error",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        await process.wait()


async def ask(address: str, path: str, **parameters: str) -> Any:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{address}/api/v1/{path}", params=parameters) as response,
    ):
        said = await response.json()
    assert said["status"] == "success", said
    return said["data"]


async def scraped(address: str) -> None:
    """Wait until Prometheus has read the relay and evaluated every rule."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                found = (await ask(address, "query", query="posthouse_relay_connections"))["result"]
                groups = (await ask(address, "rules"))["groups"]
                if found and all(rule["health"] != "unknown" for group in groups for rule in group["rules"]):
                    return
            except aiohttp.ClientError:
                pass  # it is still starting
            await asyncio.sleep(0.2)


@needs_prometheus
async def test_prometheus_scrapes_a_relay_and_evaluates_every_rule_and_panel(tmp_path: Path) -> None:
    async with open_house(tmp_path, metrics_listen=ListenAddress("127.0.0.1", 0)) as house:
        await fill(house)
        assert house.server is not None
        async with prometheus(tmp_path, str(house.server.metrics_at)) as address:
            await scraped(address)
            groups = (await ask(address, "rules"))["groups"]
            health = {rule["name"]: (rule["health"], rule.get("lastError")) for rule in groups[0]["rules"]}
            assert health == {rule["alert"]: ("ok", None) for rule in rules()}
            shown = await ask(address, "label/__name__/values")
            assert {m.name for m in METRICS if m.kind == "gauge" and not m.labels} - set(shown) == PINCH
            for query in dashboard_queries():
                await ask(address, "query", query=query.replace("$instance", ".*").replace("$__rate_interval", "1m"))


#: of a wire that this relay does not speak
PINCH = {"posthouse_relay_pinch_connections"}


async def fill(house: House) -> None:
    """Let a relay have something to show."""
    client = house.client(ADMIN)
    await client.publish("hello", kind=1)
    await client.close()


@needs_prometheus
def test_alerts_fire_when_they_should_and_name_the_relay(tmp_path: Path) -> None:
    relay = 'instance="a:9420", job="posthouse-relay"'
    cases = [
        ("PosthouseRelayDown", f"up{{{relay}}}", "0x30", "5m"),
        ("PosthouseDiskLow", f"posthouse_relay_disk_free_bytes{{{relay}}}", "2147483648x30", "10m"),
        ("PosthouseDiskAlmostFull", f"posthouse_relay_disk_free_bytes{{{relay}}}", "1000x30", "10m"),
        ("PosthouseMessagesWait", f"posthouse_relay_queue_oldest_seconds{{{relay}}}", "100000x30", "20m"),
        ("PosthouseDeadLetters", f"posthouse_relay_parked_messages{{{relay}}}", "0x10 3x20", "20m"),
        ("PosthouseWebhookLate", f"posthouse_relay_webhook_lag_seconds{{{relay}}}", "900x30", "10m"),
        ("PosthouseMeshFull", f"posthouse_relay_meshes_full{{{relay}}}", "1x30", "10m"),
        ("PosthouseSweeperStuck", f'posthouse_relay_sweep_age_seconds{{{relay},sweeper="queues"}}', "9000x30", "20m"),
        ("PosthouseNoLeader", f"posthouse_relay_leader{{{relay}}}", "0x30", "5m"),
        ("PosthouseRefusals", f'posthouse_relay_events_refused_total{{{relay},code="mesh_full"}}', "0+600x30", "25m"),
    ]
    # an alert that fires is compared with the count of its active series: promtool compares the labels, too
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": series, "values": values}],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                    "eval_time": at,
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for name, series, values, at in cases
    ]
    quiet = {
        "interval": "1m",
        "input_series": [
            {"series": f"up{{{relay}}}", "values": "1x30"},
            {"series": f"posthouse_relay_disk_free_bytes{{{relay}}}", "values": "99999999999x30"},
            {"series": f"posthouse_relay_parked_messages{{{relay}}}", "values": "3x30"},
            {"series": f"posthouse_relay_leader{{{relay}}}", "values": "1x30"},
        ],
        "promql_expr_test": [{"expr": "count(ALERTS)", "eval_time": "25m", "exp_samples": []}],
    }
    path = tmp_path / "tests.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [*tests, quiet]})
    )
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
