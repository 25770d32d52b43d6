"""Running the blocks of a page, one after another, as a reader would: one home, one folder, one PATH."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT, Block

BOUND_S = 60


@dataclass(frozen=True)
class Session:
    """A reader with an empty home."""

    folder: Path

    def run(self, block: Block) -> None:
        """Run a block; what it prints must be what the page says."""
        if block.language == "python":
            self._call([sys.executable, "-c", block.body], block)
            return
        for command, expected in commands_of(block.body):
            printed = self._call(["bash", "-euo", "pipefail", "-c", command], block)
            assert fits(printed, expected), f"{block}: `{command}` printed\n{printed}\nbut the page says\n{expected}"

    def close(self) -> None:
        """Kill what the page has started and left running."""
        for found in Path("/proc").iterdir():
            if not found.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # a process that has ended, or of another user
                if (found / "cwd").readlink().is_relative_to(self.folder):
                    os.kill(int(found.name), signal.SIGKILL)

    def _call(self, command: list[str], block: Block) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )
        assert done.returncode == 0, f"{block}: {command[-1]}\nexit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        programs = Path(sys.executable).parent
        return {
            "HOME": str(self.folder),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONWARNINGS": "error",
            "NO_COLOR": "1",
            "LANG": "C.UTF-8",
            "POSTHOUSE_RELAY_LISTEN": "127.0.0.1:0",  # pages that say no port share this machine with others
        }


def commands_of(body: str) -> list[tuple[str, str]]:
    """Split a console block into commands and what each is said to print."""
    found: list[tuple[str, str]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found:
            command, expected = found[-1]
            is_continued = command.endswith("\\") and not expected
            found[-1] = (f"{command}\n{line}", "") if is_continued else (command, f"{expected}{line}\n")
        else:
            raise AssertionError(f"a console block starts with a command, not with {line!r}")
    return found


def fits(printed: str, expected: str) -> bool:
    """Tell whether the output is as the page says; `...` is anything, runs of spaces count as one."""
    if not expected.strip():
        return True
    pattern = re.escape(_squeeze(expected)).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, _squeeze(printed), re.S) is not None


def _squeeze(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())
