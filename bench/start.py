"""How long commands take from start to end, relative to an interpreter that does nothing.

Commands and the bare interpreter take turns, and the result is the median of the rounds' ratios. A relay and a daemon
run in a home of their own; the daemon stops before the last commands, which then send through the relay.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.comparison import Requirement, describe_machine, median, median_ratio

ROUNDS, QUICK_ROUNDS = 21, 5
REQUIRED = (
    Requirement("posthouse version, relative to `python -c pass`", "version", "ratio", "at most", 2.5),
    Requirement("posthouse --help", "help", "ratio", "at most", 15),
    Requirement("posthouse hook", "hook", "ratio", "at most", 3),
    Requirement("posthouse send, through a daemon", "send", "ratio", "at most", 12),
    Requirement("posthouse send, without a daemon", "send_direct", "ratio", "at most", 25),
)
_WITH_DAEMON = {
    "version": ("version",),
    "help": ("--help",),
    "hook": ("hook", "claude-code", "prompt"),
    "send": ("send", "here", "hello"),
}
_WITHOUT_DAEMON = {"send_direct": ("send", "here", "hello")}
#: What the installed script `posthouse` does.
_POSTHOUSE = (sys.executable, "-c", "from posthouse.cli.main import main; main()")
_BARE = (sys.executable, "-c", "pass")
_TIMEOUT_S = 120


def measure_start(scratch: Path, rounds: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Measure every command, with a daemon and without."""
    environ = os.environ | {"POSTHOUSE_HOME": str(scratch / "home"), "POSTHOUSE_RELAY_LISTEN": "127.0.0.1:0"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles again

    def run(words: Sequence[str]) -> float:
        begin_s = time.perf_counter()
        subprocess.run(
            words, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_TIMEOUT_S
        )
        return time.perf_counter() - begin_s

    note("starting a relay and a daemon")
    run((*_POSTHOUSE, "up", "--name", "here"))
    try:
        found = _take_turns(run, _WITH_DAEMON, rounds, note)
        run((*_POSTHOUSE, "daemon", "down"))
        found |= _take_turns(run, _WITHOUT_DAEMON, rounds, note)
    finally:
        run((*_POSTHOUSE, "down"))
    report = {"rounds": rounds, **found, "machine": describe_machine()}
    return report | {"required": [requirement.evaluate(report) for requirement in REQUIRED]}


def _take_turns(
    run: Callable[[Sequence[str]], float],
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    note: Callable[[str], None],
) -> dict[str, dict[str, float]]:
    note(f"measuring {', '.join(commands)}")
    for words in commands.values():  # the first start compiles modules
        run((*_POSTHOUSE, *words))
    taken_s: dict[str, list[float]] = {name: [] for name in commands}
    bare_s: list[float] = []
    for _ in range(rounds):
        bare_s.append(run(_BARE))
        for name, words in commands.items():
            taken_s[name].append(run((*_POSTHOUSE, *words)))
    return {
        name: {"ratio": median_ratio(taken, bare_s), "ms": round(1_000 * median(taken), 1)}
        for name, taken in taken_s.items()
    }
