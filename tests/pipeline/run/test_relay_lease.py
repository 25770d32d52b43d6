"""The lease of a lake at the relay while a run works: lost renewals, and another run that takes the lake."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posthouse.client import Client
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake import Lake
from posthouse.pipeline.run import lake_run
from posthouse.pipeline.run.lake_run import CheckLease, lake_id, with_relay_lock
from tests.pipeline.relay import Post, post_office

_LEASE_S = 2.0
_PATIENCE_S = 60.0
_LOOK_S = 0.05
_LOOKS = 1_200


@pytest.fixture(scope="module")
def post(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Post]:
    with post_office(tmp_path_factory.mktemp("lease")) as post:
        yield post


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(lake_run, "_LEASE_S", _LEASE_S)
    return Lake(tmp_path / "lake")


async def lose_lease(client: Client, lake: Lake) -> None:
    """End the lease, as a relay does that has got no renewal in time, and return once there is the next one."""
    resource = f"lake/{lake_id(lake)}"
    async with client, asyncio.timeout(_PATIENCE_S):
        token = (await client.locks.inspect(resource)).token
        await client.locks.break_lock(resource)
        async for status in client.locks.watch(resource):
            if status.held and status.token > token:
                return


async def take_lake(client: Client, lake: Lake) -> None:
    """Take the lake from a run: wait in the relay's queue for it, and end the lease of the run."""
    resource = f"lake/{lake_id(lake)}"
    async with client, asyncio.timeout(_PATIENCE_S):
        waiting = asyncio.create_task(client.locks.acquire(resource, lease_ms=600_000, wait_ms=60_000))
        for _ in range(_LOOKS):
            if (await client.locks.inspect(resource)).waiting:
                break
            await asyncio.sleep(_LOOK_S)
        await client.locks.break_lock(resource)
        await waiting


def failure_of(check_lease: CheckLease) -> str | None:
    """Return the code with which the check of a lease fails, None if the lake is held."""
    try:
        check_lease()
    except PosthouseError as failure:
        return failure.code
    return None


def checked_until(check_lease: CheckLease, *codes: str | None) -> bool:
    """Check a lease until one of these results, and return whether it came."""
    for _ in range(_LOOKS):
        if failure_of(check_lease) in codes:
            return True
        time.sleep(_LOOK_S)
    return False


def test_a_run_that_lost_its_lease_takes_it_again_and_other_runs_stay_out(lake: Lake, post: Post) -> None:
    with with_relay_lock(lake, post.client(post.key)) as check_lease:
        asyncio.run(lose_lease(post.client(post.key), lake))
        check_lease()
        with pytest.raises(PosthouseError) as refused, with_relay_lock(lake, post.client(post.key)):
            pass
        assert refused.value.code == "lake_busy"
    with with_relay_lock(lake, post.client(post.key)) as check_lease:
        check_lease()


def test_a_run_whose_lake_another_run_has_taken_ends_with_lake_busy(lake: Lake, post: Post) -> None:
    with with_relay_lock(lake, post.client(post.key)) as check_lease:
        check_lease()
        asyncio.run(take_lake(post.client(post.key), lake))
        assert checked_until(check_lease, "lake_busy")


def test_a_run_whose_relay_is_away_waits_for_the_length_of_a_lease_and_goes_on_when_it_is_back(
    lake: Lake, tmp_path: Path
) -> None:
    with post_office(tmp_path) as away, with_relay_lock(lake, away.client(away.key)) as check_lease:
        away.relay.kill()
        assert checked_until(check_lease, "lake_busy", "relay_unreachable")
        away.relay.start()
        assert checked_until(check_lease, None)
