"""What the library logs: on standard error, or where the program says; never on the program's standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_MODULES = (
    "posthouse.sqlite.checkpoint",
    "posthouse.storage.writer",
    "posthouse.storage.handover",
    "posthouse.bus.ledger",
)
_LOG_FROM_EACH = f"""
import importlib
for name in {_MODULES!r}:
    importlib.import_module(name).log.error("something_happened", where=name)
"""
_BUS_WITH_TROUBLE = """
import asyncio, sys
from pathlib import Path
from posthouse import Bus

async def main():
    folder = Path(sys.argv[1])
    async with Bus(folder) as bus:
        (folder / "access-rules.json").write_text("{")
        await bus.register_endpoint("a.b")
        await bus.subscribe("a.b", lambda envelope: 1 / 0)
        await bus.sweep()
        (folder / "config.json").write_text("{")
        await bus.publish("a.b", 1, from_="c")
        print(len(bus.problems()))

asyncio.run(main())
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, env=environ, check=True
    )


def test_unconfigured_program_finds_entries_on_standard_error_only() -> None:
    ended = run(_LOG_FROM_EACH)
    assert ended.stdout == ""
    assert ended.stderr.count("something_happened") == len(_MODULES)


def test_bus_in_trouble_leaves_standard_output_to_the_program(tmp_path: Path) -> None:
    ended = run(_BUS_WITH_TROUBLE, str(tmp_path / "bus"))
    assert ended.stdout == "2\n"
    assert "access-rules.json" in ended.stderr


@pytest.mark.parametrize("when", ["before", "after"])
def test_entries_go_where_the_program_sends_them(when: str) -> None:
    configure = "import structlog, sys\nstructlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stdout))\n"
    load = "import posthouse.storage.writer\n"
    program = (configure + load if when == "before" else load + configure) + _LOG_FROM_EACH
    ended = run(program)
    assert ended.stdout.count("something_happened") == len(_MODULES)
    assert ended.stderr == ""


def test_program_that_only_sets_a_level_still_has_its_standard_output_to_itself() -> None:
    program = "import posthouse.storage.writer, structlog\n" + (
        "structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))\n"
    )
    ended = run(program + _LOG_FROM_EACH)
    assert ended.stdout == ""
    assert ended.stderr.count("something_happened") == len(_MODULES)


def test_entry_on_standard_error_holds_no_raw_control_characters() -> None:
    program = """
from posthouse.log import get_log
get_log("x").error("refused", sender="a\\x1b[2Jb\\x9b1m", body="x\\nforged")
"""
    ended = run(program)
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.rstrip("\n").isprintable()


def test_entry_that_no_stream_takes_is_dropped() -> None:
    program = """
import sys
from posthouse.log import get_log
sys.stderr.close()
get_log("x").error("nobody reads this")
print("went on")
"""
    assert run(program).stdout == "went on\n"


def test_entry_that_the_programs_own_logger_refuses_is_dropped() -> None:
    program = """
import structlog
from posthouse.log import get_log

class Full:
    def msg(self, text):
        raise OSError(28, "No space left on device")
    error = msg

structlog.configure(logger_factory=lambda *names: Full())
get_log("x").error("no room for this")
print("went on")
"""
    assert run(program).stdout == "went on\n"
