"""The lost update: workers add to one register and are stopped beyond their lease between reading and writing.

With the fence no addition is ever lost. The control is the same experiment without it, and loses some.
"""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.faults.campaign import chance, rounds
from tests.faults.child import Child
from tests.faults.locks_register import LEASE_S
from tests.faults.relay_process import RelayProcess

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.xdist_group("lock-faults")]
WORKERS = 4
PATIENCE_S = 60


@dataclass(frozen=True)
class Experiment:
    """What came of it."""

    added: int
    register: int
    refused: int


def experiment(folder: Path, kind: str, chance: random.Random, stops: int) -> Experiment:
    """Let workers add while one after the other is stopped in the middle."""
    with RelayProcess(folder) as relay:
        workers = [Child("tests.faults.locks_register", relay.url, folder, kind) for _ in range(WORKERS)]
        try:
            for _ in range(stops):
                stop_between_read_and_write(chance.choice(workers), workers)
        finally:
            for worker in workers:
                worker.end_input()
        told = [line for worker in workers for line in _end(worker)]
    register = int((folder / "register").read_bytes())
    return Experiment(told.count("added"), register, told.count("refused fence_stale"))


def stop_between_read_and_write(victim: Child, workers: list[Child]) -> None:
    """Stop a worker that has just read, until others have added meanwhile, and let it go on."""
    wait_for_new(victim, "read")
    victim.signal(signal.SIGSTOP)
    others = [worker for worker in workers if worker is not victim]
    before = sum(worker.lines.count("added") for worker in others)
    for _ in range(round(PATIENCE_S / 0.01)):
        if sum(worker.lines.count("added") for worker in others) > before + 2:
            break
        time.sleep(0.01)
    else:
        raise AssertionError("nobody got the lock of a worker that was stopped beyond its lease")
    victim.signal(signal.SIGCONT)
    time.sleep(LEASE_S / 4)


def wait_for_new(worker: Child, line: str) -> None:
    seen = worker.lines.count(line)
    for _ in range(round(PATIENCE_S / 0.002)):
        if worker.lines.count(line) > seen:
            return
        time.sleep(0.002)
    raise AssertionError(f"the worker never told {line!r} again: {worker.errors}")


def _end(worker: Child) -> list[str]:
    assert worker.wait(PATIENCE_S) == 0, worker.errors
    return worker.lines


def test_fenced_register_never_loses_an_update(tmp_path: Path) -> None:
    result = experiment(tmp_path, "fenced", chance("register"), stops=rounds(4, 40))
    assert result.refused > 0, "no stop hit between reading and writing"
    assert result.register == result.added


def test_control_without_the_fence_updates_are_lost(tmp_path: Path) -> None:
    result = experiment(tmp_path, "unfenced", chance("register"), stops=rounds(4, 10))
    assert result.register < result.added
