from __future__ import annotations

import json
from pathlib import Path

import pytest

from posthouse.model.clock import FakeClock, SteppedClock, SystemClock, parse_utc, system_clock
from posthouse.model.errors import PosthouseError


def test_boot_time_does_not_go_back() -> None:
    clock = SystemClock()
    first = clock.boot_ns()
    assert clock.boot_ns() >= first
    assert clock.boot_id == SystemClock().boot_id


def test_a_stepped_clock_reads_its_offsets_at_each_use(tmp_path: Path) -> None:
    offsets = tmp_path / "clock.json"
    clock = system_clock({"POSTHOUSE_TEST_CLOCK": str(offsets)})
    assert isinstance(clock, SteppedClock)
    before = clock.wall_ns()
    offsets.write_text(json.dumps({"wall_offset_ns": 10**15, "boot_offset_ns": 10**16}))
    assert clock.wall_ns() >= before + 10**15
    assert clock.boot_ns() >= 10**16
    offsets.write_text("")
    assert clock.wall_ns() < before + 10**15


def test_without_the_variable_the_clock_is_the_machines() -> None:
    assert type(system_clock({})) is SystemClock


def test_a_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock(wall_ns=0, boot_ns=0)
    clock.advance(1.5)
    assert (clock.wall_ns(), clock.boot_ns()) == (1_500_000_000, 1_500_000_000)
    clock.step_wall(-1)
    assert (clock.wall_ns(), clock.boot_ns()) == (500_000_000, 1_500_000_000)
    before = clock.boot_id
    clock.reboot()
    assert (clock.boot_ns(), clock.boot_id != before) == (0, True)


@pytest.mark.parametrize("text", ["9999-12-31T00:00:00Z", "0001-01-01T00:00:00Z"])
def test_a_time_that_no_store_can_hold_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError, match="between the years 1677 and 2262"):
        parse_utc(text)
