"""Typing the blocks of a page, one after another, as a reader would: in terminals, in one folder, with an empty home.

What a reader exports stays exported in that terminal. Pages show the default port of a relay, and the session types a
free one. A word of a command with `...` in it is one that an earlier command has printed: the reader pastes it. A
comment before a block, which readers do not see, may hold instructions that are separated by semicolons:

    terminal NAME           in a terminal of its own
    host NAME               on another machine: with a home of its own
    runs                    the last command runs until Ctrl-C, once it has printed what the page says
    stops NAME              Ctrl-C in that terminal, before the block
    fails                   the last command fails, and what it says counts
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import ROOT, Block

BOUND_S = 240  # ends a command that hangs; a busy machine takes its time
_PORT = "7420"
_LOOK_S = 0.05


@dataclass(frozen=True)
class Typing:
    """How a block is typed."""

    host: str = ""
    terminal: str = ""
    stops: str = ""
    runs: bool = False
    fails: bool = False


def typing_of(block: Block) -> Typing:
    """Return what the comment before a block says."""
    given: dict[str, str | bool] = {}
    for part in filter(None, map(str.strip, block.typing.split(";"))):
        word, _, value = part.partition(" ")
        known: dict[str, str | bool] = {"terminal": value, "host": value, "stops": value, "runs": True, "fails": True}
        assert word in known, f"{block}: no test understands {part!r}"
        given[word] = known[word]
    return Typing(**given)  # type: ignore[arg-type]


@dataclass
class Session:
    """A reader with an empty home; `programs` and `packages` are where the product is installed."""

    folder: Path
    programs: Path = Path(sys.executable).parent
    packages: Path = ROOT / "src"
    _port: str = ""
    _printed: list[str] = field(default_factory=list)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def run(self, block: Block) -> None:
        """Type a block; what it prints must be what the page says."""
        typing = typing_of(block)
        if typing.stops:
            self._stop(typing.stops)
        body = block.body.replace(_PORT, self._free_port())
        if block.language == "python":
            self._call(shlex.join([sys.executable, "-c", body]), block, typing)
            return
        commands = commands_of(body)
        for number, (command, expected) in enumerate(commands):
            is_last = number == len(commands) - 1
            if typing.runs and is_last:
                self._start(self._pasted(command), expected, block, typing)
            else:
                printed = self._call(self._pasted(command), block, typing, may_fail=typing.fails and is_last)
                self._printed += printed.split()
                assert fits(printed, expected), (
                    f"{block}: `{command}` printed\n{printed}\nbut the page says\n{expected}"
                )

    def close(self) -> None:
        """Kill what the page has started and left running."""
        for found in Path("/proc").iterdir():
            if not found.name.isdigit():
                continue
            with contextlib.suppress(OSError):  # a process that has ended, or of another user
                if (found / "cwd").readlink().is_relative_to(self.folder):
                    os.kill(int(found.name), signal.SIGKILL)
        for process in self._running.values():
            process.wait(BOUND_S)

    def _call(self, command: str, block: Block, typing: Typing, *, may_fail: bool = False) -> str:
        kept = self._home(typing) / f".terminal-{typing.terminal}"
        script = f"set -euo pipefail\n[ ! -e {kept} ] || . {kept}\n{command}\nexport -p > {kept}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._home(typing),
            env=self._environment(typing),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BOUND_S,
        )
        said = f"{block}: {command}\nexit {done.returncode}\n{done.stdout}{done.stderr}"
        assert (done.returncode == 0) != may_fail, said
        return done.stdout + (done.stderr if may_fail else "")

    def _start(self, command: str, expected: str, block: Block, typing: Typing) -> None:
        """Start a command that runs until Ctrl-C, and wait until it has printed what the page says."""
        path = self._home(typing) / f".printed-{typing.terminal}"
        with path.open("wb") as printed:
            self._running[typing.terminal] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._home(typing),
                env=self._environment(typing),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )
        end_s = time.monotonic() + BOUND_S
        while not fits(path.read_text(), expected):
            has_ended = self._running[typing.terminal].poll() is not None
            assert not has_ended and time.monotonic() < end_s, f"{block}: `{command}` printed\n{path.read_text()}"
            time.sleep(_LOOK_S)

    def _stop(self, terminal: str) -> None:
        process = self._running[terminal]
        process.send_signal(signal.SIGINT)
        process.wait(BOUND_S)

    def _pasted(self, command: str) -> str:
        """Return a command as it is typed: a word with `...` in it was printed before."""
        for word in (word for word in command.split() if "..." in word):
            found = next(each for each in reversed(self._printed) if fits(each, word))
            command = command.replace(word, found)
        return command

    def _free_port(self) -> str:
        if not self._port:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self._port = str(probe.getsockname()[1])
        return self._port

    def _home(self, typing: Typing) -> Path:
        home = self.folder / typing.host[:1]  # short, or the address of a socket in it would be too long
        home.mkdir(exist_ok=True)
        if not (home / ".profile").exists():  # others may look into most folders in which people work
            home.chmod(0o755)
            (home / ".profile").touch()
        return home

    def _environment(self, typing: Typing) -> dict[str, str]:
        # the default port may be taken: pages share this machine with others
        place = f"127.0.0.1:{self._free_port()}"
        reached = {} if typing.host else {"POSTHOUSE_CLIENT_RELAY": place}
        return {
            "HOME": str(self._home(typing)),
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.packages),
            "PYTHONWARNINGS": "error",
            "NO_COLOR": "1",
            "LANG": "C.UTF-8",
            "POSTHOUSE_RELAY_LISTEN": place,
            **reached,
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
