"""Record the first minute in a terminal, as text: `python -m scripts.recording`.

Types the commands of SCENES in a home of its own and writes what a person would see, with the time of each line, to
docs/images/first-minute.cast (asciicast 2, which `asciinema play` shows) and docs/images/first-minute.txt. The pauses
are invented, not measured, so that a person can read along. Ids, ports and the name of the machine are replaced by
fixed ones, so that a new recording differs only where the product does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
#: What is typed, in order.
SCENES = (
    "posthouse up --name laptop",
    "posthouse agent add planner",
    "posthouse agent add coder",
    'posthouse send coder "add --dry-run to deploy.sh" --agent planner --id dry-run',
    "posthouse inbox wait --agent coder",
    "posthouse reserve deploy.sh --agent coder",
    "posthouse trace dry-run --agent planner",
    "posthouse status",
    "posthouse down",
)
WIDTH, HEIGHT = 120, 40
_PROMPT = "$ "
_KEY_S, _ANSWER_S, _READ_S = 0.04, 0.6, 1.8
#: What differs from run to run, and what the recording shows instead.
_FIXED = (
    (re.compile(r"127\.0\.0\.1:\d+"), "127.0.0.1:7420"),
    (re.compile(r"pid \d+"), "pid 4711"),
    (re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b"), "01KA5Z8QJ4T6W3X9Y2B7C1D5EF"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "5e" * 32),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "2026-11-16T09:30:00Z"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min)\b"), r"1 \2"),
)


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as home:
        scenes = [(typed, run(typed, Path(home))) for typed in SCENES]
    IMAGES.joinpath("first-minute.cast").write_text(cast(scenes))
    IMAGES.joinpath("first-minute.txt").write_text(transcript(scenes))


def run(typed: str, home: Path) -> str:
    """Run one command line in a folder that is the home, and return what a terminal shows."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": programs, "HOME": str(home), "COLUMNS": str(WIDTH), "LANG": "C.UTF-8", "NO_COLOR": "1"}
    environ |= {"POSTHOUSE_RELAY_LISTEN": "127.0.0.1:0", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    done = subprocess.run(
        ["bash", "-c", f"{typed} 2>&1"], cwd=home, env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    return fixed(done.stdout.replace(str(home), "~"))


def fixed(text: str) -> str:
    """Return the output with the texts replaced that differ from run to run."""
    for found, shown in _FIXED:
        text = found.sub(shown, text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def transcript(scenes: list[tuple[str, str]]) -> str:
    """Return the recording as text alone."""
    return "\n".join(f"{_PROMPT}{typed}\n{shown}" for typed, shown in scenes)


def cast(scenes: list[tuple[str, str]]) -> str:
    """Return the recording as asciicast 2: a header, then one event per line."""
    lines = [json.dumps({"version": 2, "width": WIDTH, "height": HEIGHT, "title": "The first minute of posthouse"})]
    at_s = 0.0

    def add(pause_s: float, text: str) -> None:
        nonlocal at_s
        at_s += pause_s
        lines.append(json.dumps([round(at_s, 2), "o", text]))

    for typed, shown in scenes:
        add(0.0, _PROMPT)
        for key in typed:
            add(_KEY_S, key)
        add(_ANSWER_S, "\r\n" + shown.replace("\n", "\r\n"))
        add(_READ_S, "")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
