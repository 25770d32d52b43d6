"""A real process with a bus of its own, driven by the test: the other side of everything between processes.

The child runs tests/bus/children/agent.py and speaks JSON lines: commands in, answers and events out. Every wait is
bounded; `kill` is kill -9.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bus.waiting import DEADLINE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
CHILDREN = Path(__file__).parent / "children"


class Agent:
    """A child process; use `start`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        #: everything the child said that was no answer, in order
        self.events: list[dict[str, Any]] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reader = asyncio.create_task(self._read())
        self._asked = 0

    @classmethod
    async def start(cls, root: Path, *, clock_file: Path | None = None, **settings: Any) -> Agent:
        """Start a process that has the bus in `root` open."""
        env = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        if clock_file is not None:
            env["POSTHOUSE_TEST_CLOCK"] = str(clock_file)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILDREN / "agent.py"),
            str(root),
            json.dumps(settings),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=env,
            limit=1 << 24,
        )
        agent = cls(process)
        await eventually(lambda: agent.seen("open"))
        return agent

    async def ask(self, do: str, **arguments: Any) -> Any:
        """Let the child do something and return its answer; an error there is an error here."""
        answer = await asyncio.wait_for(self.post(do, **arguments), DEADLINE_S * 4)
        if "error" in answer:
            raise ChildError(answer["error"], answer["text"])
        return answer["answer"]

    def post(self, do: str, **arguments: Any) -> asyncio.Future[Any]:
        """Send a command without waiting for the answer."""
        assert self.process.stdin is not None
        self._asked += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[self._asked] = future
        line = json.dumps({"ask": self._asked, "do": do, **arguments})
        self.process.stdin.write(line.encode() + b"\n")
        return future

    def seen(self, event: str) -> list[dict[str, Any]]:
        """The events of one kind so far."""
        return [said for said in self.events if said["event"] == event]

    def handled(self) -> list[Any]:
        """The payloads its handlers have taken, in order."""
        return [said["payload"] for said in self.seen("handled")]

    async def wait_handled(self, enough: Callable[[list[Any]], bool] | int) -> list[Any]:
        """Wait until the handled payloads are enough: a number, or what the function accepts."""
        until = enough if callable(enough) else lambda seen: len(seen) >= enough
        return await eventually(self.handled, until)

    async def kill(self) -> None:
        """End the process as a crash would."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await asyncio.wait_for(self.process.wait(), DEADLINE_S)
        await self._reader

    async def stop(self) -> None:
        """Let the child close its bus and end; used at the end of every test."""
        if self.process.returncode is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                await asyncio.wait_for(self.process.wait(), DEADLINE_S)
            except TimeoutError:
                await self.kill()
                raise
        await self._reader

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            said = json.loads(line)
            future = self._answers.pop(said["ask"], None) if "ask" in said else None
            if future is None:
                self.events.append(said)
            elif not future.done():
                future.set_result(said)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ChildError("child_ended", "the child ended before it answered"))


class ChildError(Exception):
    """What a command raised in the child."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
