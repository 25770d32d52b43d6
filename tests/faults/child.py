"""A real child process that a test can kill at any moment.

The child tells what it has answered, one line each on its stdout; a thread reads them while it runs, so the pipe
never fills. A last line that the kill tore is dropped: the child had not finished telling.
"""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType

from tests.forked import ROOT, Forked


class Child:
    """`python -m module args`, started now."""

    def __init__(self, module: str, *args: object, env: dict[str, str] | None = None) -> None:
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src"), str(ROOT)])
        self._process = Forked(module, *args, cwd=ROOT, env=os.environ | {"PYTHONPATH": path} | (env or {}))
        self._told = threading.Condition()
        self._lines: list[str] = []
        self._is_over = False
        self._errors = b""
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_lines, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()

    @property
    def lines(self) -> list[str]:
        """What the child has told so far."""
        with self._told:
            return list(self._lines)

    @property
    def is_over(self) -> bool:
        """Whether the child has closed its stdout: it has ended, or is about to."""
        with self._told:
            return self._is_over

    @property
    def errors(self) -> str:
        """What the child wrote to stderr, complete once it has ended."""
        return self._errors.decode(errors="replace")

    def wait_lines(self, count: int, timeout_s: float = 30) -> list[str]:
        """Return the lines once there are `count`; a child that ends or says nothing fails the test."""
        with self._told:
            enough = self._told.wait_for(lambda: len(self._lines) >= count or self._is_over, timeout_s)
            if enough and len(self._lines) >= count:
                return list(self._lines)
        if enough:
            self.wait(timeout_s)  # its errors are complete once it has ended
        raise AssertionError(f"the child told {len(self._lines)} of {count} lines: {self.errors}")

    def tell(self, line: str) -> None:
        """Write a line to the child's stdin."""
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def end_input(self) -> None:
        """Close the child's stdin: it is asked to come to its end."""
        self._process.stdin.close()

    def signal(self, number: int) -> None:
        """Send the child a signal."""
        self._process.send_signal(number)

    def kill(self) -> list[str]:
        """SIGKILL the child and return everything it told before."""
        self._process.send_signal(signal.SIGKILL)
        self.wait()
        return self.lines

    def wait(self, timeout_s: float = 30) -> int:
        """Wait until the child has ended and return its exit code; minus the signal if one ended it."""
        code = self._process.wait(timeout_s)
        for reader in self._readers:
            reader.join(timeout_s)
        self._process.close()
        return code

    def _read_lines(self) -> None:
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                with self._told:
                    self._lines.append(line.decode().rstrip("\n"))
                    self._told.notify_all()
        with self._told:
            self._is_over = True
            self._told.notify_all()

    def _read_errors(self) -> None:
        self._errors = self._process.stderr.read()
