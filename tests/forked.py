"""Python programs as real processes that start quickly: a server that has imported the libraries forks them.

A new interpreter spends half a second of a processor on imports, and the tests start more than a thousand programs. A
forked program has an environment, a directory and streams of its own, takes signals and can be killed at any moment.
It differs from a new interpreter in what it imports first, in its command line and in its parent; tests of these start
new interpreters. Each test process has a server, which ends with it and ends what it forked. A shell can ask it too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
_REQUEST_BYTES = 1 << 17  # the words and the environment of a program
_STREAMS = 3
#: Libraries of Spark are large and rarely needed; the others ask for their parent, or are tiny, when they are imported.
_NOT_IMPORTED = (
    "posthouse.pipeline",
    "posthouse.cli.main",
    "posthouse.cli.hook",
    "posthouse.cli.lock_exec",
    "posthouse.cli.spark_submit",
    "posthouse.mcp.pipe",
)
_sending = threading.Lock()


class Forked:
    """`python -m module args`, started now; its streams are pipes."""

    def __init__(
        self, module: str, *args: object, env: Mapping[str, str] = os.environ, cwd: Path | None = None
    ) -> None:
        self.args = [module, *map(str, args)]
        self.returncode: int | None = None
        (their_in, our_in), (our_out, their_out), (our_err, their_err) = (os.pipe() for _ in range(_STREAMS))
        self.stdin = os.fdopen(our_in, "wb")
        self.stdout = os.fdopen(our_out, "rb")
        self.stderr = os.fdopen(our_err, "rb")
        self._state, their_state = socket.socketpair()
        request = {"words": self.args, "env": dict(env), "cwd": str(cwd or Path.cwd())}
        handed = [their_in, their_out, their_err, their_state.fileno()]
        with _sending:
            socket.send_fds(_server().connection, [json.dumps(request).encode()], handed)
        for stream in handed[:_STREAMS]:
            os.close(stream)
        their_state.close()
        self.pid = int(self._receive(None))

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; minus the signal if one ended it."""
        if self.returncode is None:
            self.returncode = int(self._receive(timeout))
            self._state.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it without a warning."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Close its input, and return what it wrote to its output and its error stream once it has ended."""
        told: dict[str, bytes] = {}
        self.stdin.close()
        streams = {"out": self.stdout, "err": self.stderr}
        readers = [
            threading.Thread(target=lambda name=name, stream=stream: told.update({name: stream.read()}), daemon=True)
            for name, stream in streams.items()
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        self.close()
        return told["out"].decode(), told["err"].decode()

    def close(self) -> None:
        """Close the streams."""
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    def _receive(self, timeout: float | None) -> bytes:
        if timeout is not None and not select.select([self._state], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout)
        told = self._state.recv(100)
        assert told, "the server of forked programs has ended"
        return told


def run_forked(
    module: str, *args: object, env: Mapping[str, str] = os.environ, cwd: Path | None = None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; one that takes longer is killed."""
    program = Forked(module, *args, env=env, cwd=cwd)
    try:
        out, err = program.communicate(timeout)
    finally:
        program.kill()
    return subprocess.CompletedProcess(program.args, program.wait(), out, err)


def write_command(path: Path, module: str) -> None:
    """Write a program for shells that is `python -m module`, forked."""
    words = [sys.executable, "-I", "-S", str(ROOT / "tests" / "forked_command.py"), _server().address, module]
    path.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    path.chmod(0o755)


class _Server(NamedTuple):
    connection: socket.socket
    process: subprocess.Popen[bytes]
    #: where commands of shells connect
    address: str


@cache
def _server() -> _Server:
    """Start the server of this test process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src"), str(ROOT)])
    address = f"{tempfile.mkdtemp(prefix='posthouse-forked-')}/sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen()
    handed = [theirs.fileno(), listener.fileno()]
    command = [sys.executable, "-m", "tests.forked", *map(str, handed)]
    environ = os.environ | {"PYTHONPATH": path}
    nothing = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nothing, stdout=nothing, pass_fds=handed, cwd=ROOT, env=environ)
    theirs.close()
    listener.close()
    return _Server(ours, process, address)


def _import_libraries() -> None:
    import posthouse

    for found in pkgutil.walk_packages(posthouse.__path__, "posthouse."):
        if not found.name.startswith(_NOT_IMPORTED):
            importlib.import_module(found.name)
    importlib.import_module("posthouse.cli.commands").build().resolved_commands()
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy the memory that all of them share


def _serve(connection: socket.socket, listener: socket.socket) -> list[str] | None:
    """Fork a process for each request and return its words there; return None in the server, when the tests end."""
    running: dict[int, socket.socket] = {}
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking.fileno())
    while True:
        ready, _, _ = select.select([connection, listener, woken], [], [])
        if woken in ready:
            woken.recv(1_000)
            _reap(running)
        if connection not in ready and listener not in ready:
            continue
        text, given = _receive(connection if connection in ready else listener.accept()[0])
        if not text and connection not in ready:  # the command was killed before it could ask
            continue
        if not text:
            for pid in running:  # what an interrupted run left behind
                os.kill(pid, signal.SIGKILL)
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for each in (connection, listener, woken, waking, *running.values()):
                each.close()
            return _become(json.loads(text), given)
        for stream in given[:_STREAMS]:
            os.close(stream)
        running[pid] = socket.socket(fileno=given[_STREAMS])
        _tell(running[pid], pid)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its streams."""
    text, given, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _STREAMS + 1)
    return text, given


def _reap(running: dict[int, socket.socket]) -> None:
    """Tell how the processes that have ended did so."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as state:
            _tell(state, os.waitstatus_to_exitcode(status))


def _tell(state: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # the test may have ended
        state.send(str(number).encode())


def _become(request: dict[str, Any], given: list[int]) -> list[str]:
    """Take the streams, environment and directory of a request; return its words."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(given[:_STREAMS]):
        os.dup2(stream, number)
    for each in given:
        os.close(each)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if os.environ.get("PYTHONWARNINGS") == "error":  # an interpreter reads it when it starts
        warnings.simplefilter("error")
    words: list[str] = request["words"]
    return words


def _main() -> None:
    connection, listener = (socket.socket(fileno=int(each)) for each in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    _import_libraries()
    address = Path(listener.getsockname())
    words = _serve(connection, listener)
    if words is None:
        shutil.rmtree(address.parent)
    else:
        module, *sys.argv[1:] = words
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
