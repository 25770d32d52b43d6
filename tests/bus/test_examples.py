"""The examples of the bus run and say what their texts promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*arguments: str, logs: str = "") -> str:
    """Run an example and return what it prints; `logs` is the one event that it may log."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=90)
    assert (done.returncode, bool(done.stderr)) == (0, bool(logs)), done
    assert done.stderr.count("[error") + done.stderr.count("[warning") == done.stderr.count(logs or "["), done
    return done.stdout


def test_ten_line_start_delivers_its_message() -> None:
    assert run(str(EXAMPLES / "start" / "main.py")) == "agents.me says 'hello'\n"


def test_request_is_answered_and_the_unserved_one_times_out() -> None:
    answered, timed_out = run(str(EXAMPLES / "request_reply" / "main.py")).splitlines()
    assert answered == "math.sum answers {'sum': 42}"
    assert timed_out.startswith("request_timeout: ")


def test_worker_process_takes_the_jobs_in_order() -> None:
    assert run(str(EXAMPLES / "two_processes" / "main.py")).splitlines() == [
        "2 jobs are waiting, no worker is running",
        "worker: sweep the floor",
        "worker: light the fire",
        "worker: feed the horses",
        "worker: stop",
        "0 jobs are waiting",
    ]


def test_dead_letter_is_sent_again_when_its_cause_is_gone() -> None:
    dead, printed, left = run(str(EXAMPLES / "dead_letters" / "main.py"), logs="handler_failed").splitlines()
    assert dead.startswith("dead: office.printer: ")
    assert "out of paper" in dead
    assert (printed, left) == ("printed: the report", "dead letters left: 0")


def test_two_agents_talk_and_no_figure_of_their_traffic_looks_like_a_failure(tmp_path: Path) -> None:
    shown = " ".join(run(str(EXAMPLES / "two_agents" / "main.py"), str(tmp_path / "bus")).split())
    for text in ("agents.editor", "agents.archive", "agents.writer", "accepted: Dawn. The horse."):
        assert text in shown, shown
    for figure in ("failed 0/s", "dead 0/s", "refused 0/s", "dead letters 0"):
        assert figure in shown, shown
    for word in ("handler failed", "OPEN", "exceeded", "cycle"):
        assert word not in shown, shown


@pytest.mark.parametrize("folder", ["start", "request_reply", "two_processes", "dead_letters", "two_agents"])
def test_example_says_how_to_run_it(folder: str) -> None:
    assert f"python examples/{folder}/main.py" in (EXAMPLES / folder / "main.py").read_text()
