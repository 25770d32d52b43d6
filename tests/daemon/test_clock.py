"""A wrong clock: the daemon waits it out and says so; nothing is given up or deleted by an age that may be wrong."""

from __future__ import annotations

from typing import Any

import pytest

from posthouse.daemon.clock_watch import ClockWatch
from posthouse.model.clock import FakeClock, SystemClock
from posthouse.model.limits import DAY_S, SECOND_NS
from tests.client.house import House
from tests.daemon.hosts import Host, eventually, host_at, make_host, running

MONTH_S = 30 * DAY_S


class WrongClock(SystemClock):
    """The machine's clock, which a test sets wrong and right again."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_s = 0.0

    def wall_ns(self) -> int:
        return SystemClock.wall_ns() + round(self.ahead_s * SECOND_NS)


async def health(host: Host) -> Any:
    return (await host.get("/v1/health")).body


@pytest.mark.parametrize("ahead_s", [2 * DAY_S, -2 * DAY_S])
async def test_daemon_with_a_wrong_clock_waits_says_so_and_connects_once_it_is_right(
    house: House, ahead_s: float
) -> None:
    clock = WrongClock()
    clock.ahead_s = ahead_s
    host = make_host(house.folder, house.url, clock=clock)
    async with running(host):
        seen = await eventually(lambda: health(host), lambda state: state["clock_difference_s"] is not None)
        assert abs(seen["clock_difference_s"] - ahead_s) <= 2
        assert not seen["clock_trusted"]
        seen = await eventually(lambda: health(host), lambda state: state["relay_error"] is not None)
        assert "this clock differs by" in seen["relay_error"]
        clock.ahead_s = 0
        await host.connected()
        seen = await health(host)
        assert (abs(seen["clock_difference_s"]) <= 2, seen["clock_trusted"], seen["relay_error"]) == (True, True, None)


async def test_nothing_is_given_up_or_deleted_while_the_clock_is_a_month_ahead(house: House, bob: Host) -> None:
    clock = WrongClock()
    async with host_at(house, "alice", clock=clock) as alice:
        sent = await bob.send(alice.node, "read long ago")
        await bob.until_status(sent["client_message_id"], "done")
        await alice.until_bodies(1)
        item = (await alice.get("/v1/inbox"))["items"][0]
        await alice.post("/v1/inbox/seen", ids=[item["id"]])
        await house.down()
        waiting = await alice.send(bob.node, "in the outbox")
        clock.ahead_s = 2 * MONTH_S
        await alice.mesh.housekeeper.sweep()
        assert (await alice.row(waiting["client_message_id"]))["status"] in ("pending", "inflight")
        assert await alice.bodies() == ["read long ago"]
        await house.up()
        clock.ahead_s = 0
        await alice.until_status(waiting["client_message_id"], "done")
        await bob.until_bodies(1)


async def test_unread_mail_is_kept_and_read_mail_is_deleted_by_age(house: House, bob: Host) -> None:
    async with host_at(house, "alice", inbox_keep_days=1) as alice:
        for text in ("read", "unread"):
            await bob.send(alice.node, text)
        await alice.until_bodies(2)
        items = (await alice.get("/v1/inbox"))["items"]
        await alice.post("/v1/inbox/seen", ids=[item["id"] for item in items if item["body"] == "read"])
        later_ns = alice.daemon.clock.wall_ns() + 10 * DAY_S * SECOND_NS
        assert await alice.mesh.inbox.delete_before(later_ns) == 1
        assert await alice.bodies() == ["unread"]


def seen(watch: ClockWatch) -> tuple[bool, float | None]:
    return watch.is_plausible, watch.difference_s


def test_clock_is_trusted_after_a_login_until_it_is_set() -> None:
    clock = FakeClock()
    watch = ClockWatch(clock)
    assert seen(watch) == (False, None)
    watch.confirm(3)
    clock.advance(MONTH_S)
    assert seen(watch) == (True, 3)
    clock.step_wall(3_600)
    assert seen(watch) == (False, 3_603)
    clock.step_wall(-3_600)
    assert seen(watch) == (True, 3)


def test_clock_that_the_relay_refuses_is_never_trusted_by_waiting() -> None:
    clock = FakeClock()
    watch = ClockWatch(clock)
    watch.refuse(2 * DAY_S)
    clock.advance(MONTH_S)
    assert seen(watch) == (False, 2 * DAY_S)


def test_clock_of_a_host_without_a_relay_is_trusted_after_a_day_without_a_step() -> None:
    clock = FakeClock()
    watch = ClockWatch(clock)
    clock.advance(DAY_S + 1)
    assert seen(watch) == (True, None)
    clock.step_wall(MONTH_S)
    assert seen(watch) == (False, None)


def test_time_of_a_proxy_before_the_relay_does_not_distrust_a_clock_that_the_relay_accepts() -> None:
    watch = ClockWatch(FakeClock())
    watch.confirm(float(MONTH_S))
    assert seen(watch) == (True, None)
