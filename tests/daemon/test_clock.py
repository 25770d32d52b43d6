"""A wrong clock: the daemon waits it out and says so; nothing is given up or deleted by an age that may be wrong."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from posthouse.client.trust.signing import Login
from posthouse.daemon.clock_watch import ClockWatch
from posthouse.daemon.roster import Roster
from posthouse.model.clock import FakeClock, SystemClock
from posthouse.model.limits import DAY_S, SECOND_NS
from tests.client.house import House, open_house
from tests.daemon.hosts import Host, change, eventually, host_at, make_host, restart, running

MONTH_S = 30 * DAY_S
NOWHERE = "http://127.0.0.1:9"


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


@pytest.mark.parametrize("ahead_s", [20 * 60, -20 * 60])
async def test_daemon_outlives_a_relay_whose_clock_is_wrong(tmp_path: Path, ahead_s: float) -> None:
    clock = WrongClock()
    clock.ahead_s = ahead_s
    host = make_host(tmp_path, NOWHERE)
    async with open_house(tmp_path, clock=clock) as house:
        host.settings = change(host.settings, relay=house.url)
        async with running(host):
            refused = await eventually(lambda: health(host), lambda state: state["relay_error"] is not None)
            assert "authentication event is invalid" in refused["relay_error"]
            clock.ahead_s = 0
            await host.connected()


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


@pytest.mark.parametrize("ahead_s", [20 * 60, 8 * DAY_S, 31 * DAY_S])
async def test_mail_that_is_sent_while_the_clock_is_ahead_arrives_in_order(
    house: House, bob: Host, ahead_s: float
) -> None:
    clock = WrongClock()
    async with host_at(house, "alice", clock=clock) as alice:
        await house.down()
        await alice.send(bob.node, "before")
        clock.ahead_s = ahead_s
        ahead = await alice.send(bob.node, "ahead")
        clock.ahead_s = 0
        await alice.send(bob.node, "after")
        await house.up()
        await alice.until_status(ahead["client_message_id"], "done")
        assert await bob.until_bodies(3) == ["before", "ahead", "after"]
        assert (await bob.get("/v1/inbox", unread="true"))["items"][1]["age_s"] < 60


async def test_mail_is_received_sent_and_confirmed_while_the_clock_of_a_connected_host_is_ahead(
    house: House, bob: Host
) -> None:
    clock = WrongClock()
    async with host_at(house, "alice", clock=clock) as alice:
        clock.ahead_s = 31 * DAY_S
        for sender, reader in ((alice, bob), (bob, alice)):
            await sender.send(reader.node, "hello", client_message_id="1")
            await eventually(partial(sender.row, "1"), lambda row: row["confirmed_at"] is not None)


async def test_mail_of_a_host_that_started_with_its_clock_ahead_is_dated_again_before_it_is_sent(
    house: House, bob: Host
) -> None:
    clock = WrongClock()
    clock.ahead_s = 8 * DAY_S
    host = make_host(house.folder, house.url, clock=clock)
    async with running(host):
        ahead = await host.send(bob.node, "ahead", client_message_id="1")
        clock.ahead_s = 0
        await host.send(bob.node, "after")
        row = await host.until_status("1", "done")
        assert await bob.until_bodies(2) == ["ahead", "after"]
        item = (await bob.get("/v1/inbox", unread="true"))["items"][0]
        assert (item["message_id"], item["age_s"] < 60) == (row["broker_message_id"], True)
        assert row["message_id"] == row["broker_message_id"] != ahead["message_id"]
        again = await host.send(bob.node, "ahead", client_message_id="1")
        assert (again.status, again["message_id"]) == (200, row["broker_message_id"])
        await eventually(lambda: host.row(ahead["message_id"]), lambda found: found["confirmed_at"] is not None)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_mail_that_is_sent_while_the_clock_is_behind_is_not_given_up_as_old(
    house: House, bob: Host, is_restarted: bool
) -> None:
    clock = WrongClock()
    async with host_at(house, "alice", clock=clock) as alice:
        await house.down()
        clock.ahead_s = -31 * DAY_S
        if is_restarted:
            await restart(alice)
        sent = await alice.send(bob.node, "behind")
        clock.ahead_s = 0
        await house.up()
        await alice.until_status(sent["client_message_id"], "done")
        await bob.until_bodies(1)
        assert (await bob.get("/v1/inbox"))["items"][0]["age_s"] < 60


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


def test_time_is_never_before_the_last_login_of_this_boot() -> None:
    clock = FakeClock()
    logins: list[Login] = []
    watch = ClockWatch(clock)
    watch.on_login = logins.append
    watch.confirm()
    clock.advance(60)
    right_ns = clock.wall_ns()
    clock.step_wall(-MONTH_S)
    assert watch.wall_ns() == ClockWatch(clock, logins[-1]).wall_ns() == right_ns
    clock.step_wall(2 * MONTH_S)
    assert watch.wall_ns() == clock.wall_ns(), "nothing says how late it can be"


def test_clock_that_is_corrected_a_little_is_followed() -> None:
    clock = FakeClock()
    watch = ClockWatch(clock)
    watch.confirm()
    clock.step_wall(-600)
    assert watch.wall_ns() == clock.wall_ns()


def test_login_of_another_boot_says_nothing_about_the_time(tmp_path: Path) -> None:
    Roster(tmp_path / "roster.json").set_login(Login(5, 7), "boot-1")
    kept = Roster(tmp_path / "roster.json")
    assert (kept.last_login("boot-1"), kept.last_login("boot-2")) == (Login(5, 7), None)
