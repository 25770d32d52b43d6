from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from posthouse import Bus
from tests.bus.house import House

TEST_LIMIT_S = 60  # no test of the bus takes a tenth of it; what reaches it hangs


@pytest.fixture(autouse=True)
def bounded_test() -> Iterator[None]:
    """End a test that hangs with a traceback of where it does."""

    def give_up(_number: int, _frame: object) -> None:
        raise TimeoutError(f"the test took more than {TEST_LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(TEST_LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def plain_log() -> None:
    """Forget how commands that ran in this process have set the log."""
    structlog.reset_defaults()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """An empty data directory."""
    house = House(tmp_path / "bus")
    yield house
    await house.close()


@pytest.fixture
async def bus(house: House) -> Bus:
    """One open bus with a clock that stands still."""
    return await house.bus()
