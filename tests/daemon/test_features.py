"""What a daemon needs of a relay: checked at the greeting, refused with close codes and a reason in JSON."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from posthouse.daemon.daemon import Daemon
from posthouse.daemon.features import Offer, bounded_max_age_h, read_offer
from posthouse.daemon.roster import Retained
from posthouse.model.errors import PosthouseError
from posthouse.model.outbox_rules import default_max_age_h, max_age_bound_h
from posthouse.relay.messages.settings import DeliverySettings
from tests.client.house import open_house
from tests.daemon.hosts import change, host_at, make_host, running
from tests.daemon.offering_relay import OFFER, offering

DEDUPE = "client_message_id_dedupe"


def with_dedupe(**change: Any) -> dict[str, Any]:
    dedupe = {name: value for name, value in (OFFER[DEDUPE] | change).items() if value != "absent"}
    return OFFER | {DEDUPE: dedupe}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in OFFER.items() if key != name}


CASES: dict[str, tuple[Any, int, str]] = {
    "nothing": ({}, 4010, "feature_unavailable"),
    "no dedupe": (without(DEDUPE), 4010, "feature_unavailable"),
    "no policy": (without("concurrent_connection_policy"), 4010, "feature_unavailable"),
    "no payload": (without("max_payload"), 4010, "feature_unavailable"),
    "features are no object": ([], 4010, "feature_unavailable"),
    "dedupe is no object": (OFFER | {DEDUPE: True}, 4011, "feature_param_invalid"),
    "version absent": (with_dedupe(version="absent"), 4011, "feature_param_invalid"),
    "version is a text": (with_dedupe(version="2"), 4011, "feature_param_invalid"),
    "old version": (with_dedupe(version=1), 4012, "feature_param_below_floor"),
    "unknown mode": (with_dedupe(mode="sometimes"), 4011, "feature_param_invalid"),
    "no fingerprints": (with_dedupe(request_fingerprint=False), 4011, "feature_param_invalid"),
    "days absent": (with_dedupe(dedupe_retention_days="absent"), 4011, "feature_param_invalid"),
    "days are a text": (with_dedupe(dedupe_retention_days="7"), 4011, "feature_param_invalid"),
    "six days": (with_dedupe(dedupe_retention_days=6), 4012, "feature_param_below_floor"),
    "unknown policy": (OFFER | {"concurrent_connection_policy": "fight"}, 4011, "feature_param_invalid"),
    "payload is no number": (OFFER | {"max_payload": "big"}, 4011, "feature_param_invalid"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_relay_that_offers_too_little_ends_the_daemon(tmp_path: Path, case: str) -> None:
    features, close_code, code = CASES[case]
    async with offering(features) as relay:
        host = make_host(tmp_path, relay.url)
        async with running(host):
            async with asyncio.timeout(20):
                with pytest.raises(PosthouseError) as ended:
                    await host.daemon.wait()
                closed, reason = await relay.closed.get()
    assert ended.value.code == code
    assert closed == close_code
    assert json.loads(reason)["code"] == code
    assert relay.heard == []  # nothing was signed for it


async def test_an_override_above_the_bound_refuses_the_relay(tmp_path: Path) -> None:
    async with offering(with_dedupe(dedupe_retention_days=7)) as relay:
        host = make_host(tmp_path, relay.url, outbox_max_age_h=145)
        async with running(host):
            async with asyncio.timeout(20):
                with pytest.raises(PosthouseError) as ended:
                    await host.daemon.wait()
    assert ended.value.code == "outbox_max_age_above_dedupe_window"
    assert (ended.value.fields["max_age_h"], ended.value.fields["bound_h"]) == (145, 144)


async def test_a_maximum_age_above_the_last_offer_of_the_relay_refuses_to_start(tmp_path: Path) -> None:
    deliveries = DeliverySettings(record_retention_days=7)
    async with open_house(tmp_path, deliveries=deliveries) as house, host_at(house, "a") as host:
        assert host.mesh.drain.max_age_h == 144
    late = Daemon(change(host.settings, outbox_max_age_h=145))
    with pytest.raises(PosthouseError) as refused:
        await late.start()
    assert refused.value.code == "outbox_max_age_above_dedupe_window"


@pytest.mark.parametrize(("days", "bound"), [(7, 144), (30, 648), (365, 7884), (None, 720), (10, 216), (11, 237)])
def test_the_bound_of_the_age(days: int | None, bound: int) -> None:
    assert max_age_bound_h(days) == bound
    assert default_max_age_h(days) == min(168, bound)
    assert bounded_max_age_h(days, bound) == bound
    with pytest.raises(PosthouseError):
        bounded_max_age_h(days, bound + 1)


def test_a_relay_that_never_forgets_needs_no_days() -> None:
    assert read_offer(with_dedupe(mode="permanent", dedupe_retention_days=None)) == Offer(None, "prefer_newest", 49_152)


async def test_a_real_relay_offers_enough(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house, host_at(house, "a") as host:
        assert host.mesh.drain.max_age_h == 168
        assert host.mesh.roster.retention == Retained(365)
