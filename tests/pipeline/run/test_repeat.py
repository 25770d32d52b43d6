"""`pipeline run --every`: what ends it, what it reports and tries again, and when."""

from __future__ import annotations

import threading

import pytest

from posthouse.cli.output import Output
from posthouse.cli.pipeline_run import repeat
from posthouse.model.errors import PosthouseError, error

HOUR_S = 3_600.0


class Stopped(threading.Event):
    """Never waits, keeps the waiting times, and stops after some of them."""

    def __init__(self, runs: int) -> None:
        super().__init__()
        self.runs = runs
        self.waited_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited_s.append(timeout)
        return len(self.waited_s) == self.runs


def repeated(failures: list[PosthouseError | None]) -> tuple[list[bool], list[float]]:
    """Run once for each given failure; return which runs counted as the first, and the waiting times."""
    stopped, left, firsts = Stopped(len(failures)), list(failures), []

    def run_now(*, is_first: bool) -> None:
        firsts.append(is_first)
        if (failure := left.pop(0)) is not None:
            raise failure

    repeat(run_now, HOUR_S, stopped, Output())
    return firsts, stopped.waited_s


def test_a_lake_that_is_held_is_tried_again_when_the_lease_ends_also_at_the_first_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = error("lake_busy", path="/lake", retry_after_s=27.6)
    assert repeated([held, None, None]) == ([True, True, False], [27.6, HOUR_S, HOUR_S])
    shown = capsys.readouterr().err
    assert "another run is using the lake /lake" in shown and "the next run starts in 28 s" in shown


def test_a_place_that_does_not_answer_ends_the_first_run_and_is_tried_again_later() -> None:
    away = error("lake_unreachable", location="s3://b/l", reason="no route")
    with pytest.raises(PosthouseError) as raised:
        repeated([away])
    assert raised.value is away
    assert repeated([None, away, None]) == ([True, False, False], [HOUR_S] * 3)


def test_a_failure_that_cannot_pass_ends_the_command() -> None:
    with pytest.raises(PosthouseError):
        repeated([None, error("lake_newer", table="t", found=9, known=3)])
