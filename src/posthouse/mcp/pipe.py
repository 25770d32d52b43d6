"""`posthouse mcp`: a pipe from an agent's program, on stdin and stdout, to the daemon, on its Unix socket.

The daemon speaks MCP; the pipe only carries lines. It imports only the standard library, so it is small and starts in
milliseconds. It outlives the daemon: while none runs the pipe answers itself, with the list of tools and a clear error
for every call, and it continues as soon as there is a daemon. A request that a lost daemon has not answered is sent
again to the next one; its id within this session makes that safe (`posthouse.mcp.tool`).
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

from posthouse.mcp import protocol

TYPE_CHECKING = False  # see posthouse.lazy
if TYPE_CHECKING:
    from collections.abc import Sequence

    from posthouse.mcp.protocol import Message
    from posthouse.model.errors import PosthouseError

ANSWER_S = 10.0  # for the daemon to accept the connection
GRACE_S = 10.0  # for a lost daemon to come back before the calls that wait for it fail
RETRY_S = 0.1  # between attempts to reach a lost daemon while calls wait
IDLE_RETRY_S = 5.0  # while no call waits
DRAIN_S = 5.0  # for running calls after the end of the input
SENDS_MAX = 3  # attempts per request: one that crashes the daemon must not crash every later one
_CHUNK_BYTES = 65_536
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_OPTIONS = ("--as", "--dir", "--mesh")


def run(words: Sequence[str]) -> int | Sequence[str]:
    """Serve until stdin ends and return the exit code, or return the words if they are not options of the pipe."""
    options = read_options(words)
    if options is None:
        return words
    mesh = options.get("--mesh")
    pipe = Pipe(directories(options.get("--dir"), mesh), options.get("--as"), mesh)
    try:
        pipe.serve()
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the program has ended; the pipe holds nothing that could be lost
    finally:
        pipe.close()
    return 0


def read_options(words: Sequence[str]) -> dict[str, str] | None:
    """Return the options by name, or None if the words are anything else, such as --help or an invalid name."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, separator, value = rest.pop(0).partition("=")
        if name not in _OPTIONS or not (separator or rest):
            return None
        options[name] = value if separator else rest.pop(0)
    name = options.get("--as", "x")
    is_name = 0 < len(name) <= 32 and not name.startswith("-") and _NAME_CHARACTERS.issuperset(name)
    return options if is_name and all(options.values()) else None


def directories(given: str | None, mesh: str | None) -> list[str]:
    """Return the directories to search for the daemon: the given one, else those of the home, the former one last."""
    if given is not None:
        return [os.path.abspath(os.path.expanduser(given))]  # noqa: PTH100, PTH111
    home = os.path.expanduser(os.environ.get("POSTHOUSE_HOME") or "~/.posthouse")  # noqa: PTH111
    return [os.path.abspath(f"{home}/daemon"), os.path.abspath(f"{home}/daemon/{mesh or 'main'}")]  # noqa: PTH100


class Pipe:
    """One session of a program."""

    def __init__(self, places: Sequence[str], name: str | None, mesh: str | None) -> None:
        self._places = places
        self._name = name
        self._mesh = mesh
        self._stdin = 0
        self._stdout = 1
        self._program: str | None = None
        self._project = os.getcwd()  # noqa: PTH109 - pathlib is slow to load
        self._key = os.urandom(8).hex()
        #: requests without an answer, by id: the line and how often it was sent
        self._waiting: dict[object, tuple[bytes, int]] = {}
        self._input = LineBuffer()
        self._daemon: DaemonStream | None = None
        self._failure: PosthouseError | None = None
        self._is_input_over = False
        #: time until which calls wait for a lost daemon to return
        self._grace_until = 0.0
        self._retry_at = 0.0

    def serve(self) -> None:
        """Carry messages until the input ends."""
        end_at = float("inf")
        while not (self._is_input_over and (not self._waiting or time.monotonic() >= end_at)):
            ready = self._poll()
            if self._stdout in ready:
                raise BrokenPipeError
            # before the input, which may open another connection under the same descriptor
            if self._daemon is not None and self._daemon.descriptor in ready:
                self._read_daemon(self._daemon)
            if self._stdin in ready:
                self._read_input()
                end_at = time.monotonic() + DRAIN_S if self._is_input_over else end_at
            if self._daemon is None and self._program is not None and time.monotonic() >= self._retry_at:
                self._reach_daemon()

    def close(self) -> None:
        """Close the connection to the daemon, which cancels every running call."""
        if self._daemon is not None:
            self._daemon.close()

    def _poll(self) -> set[int]:
        poll = select.poll()
        poll.register(self._stdout, 0)  # reports only that the reader has closed it
        if not self._is_input_over:
            poll.register(self._stdin, select.POLLIN)
        if self._daemon is not None:
            poll.register(self._daemon.descriptor, select.POLLIN)
        wait_s = IDLE_RETRY_S if self._daemon is not None else max(0.0, self._retry_at - time.monotonic())
        return {descriptor for descriptor, _ in poll.poll(min(wait_s, IDLE_RETRY_S) * 1000)}

    # from the program

    def _read_input(self) -> None:
        data = os.read(self._stdin, _CHUNK_BYTES)
        self._is_input_over = not data
        for line in self._input.take(data):
            self._take(line)

    def _take(self, line: bytes) -> None:
        """Carry one message to the daemon, or answer it here."""
        try:
            message = protocol.parse(line)
        except protocol.ProtocolError as failure:
            return self._write(protocol.error_response(None, failure))
        if len(line) > protocol.LINE_MAX_BYTES:
            too_long = protocol.ProtocolError(protocol.INVALID_REQUEST, protocol.TOO_LONG)
            return self._write(protocol.error_response(message.get("id"), too_long))
        if protocol.is_request(message):
            self._program = protocol.client_name(message) or self._program or ""
            self._waiting[message["id"]] = (line, 0)
        elif message.get("method") == "notifications/cancelled":
            self._waiting.pop(protocol.params_of(message).get("requestId"), None)
        if self._daemon is None:
            self._reach_daemon()
        elif protocol.is_request(message):
            self._send(message["id"])
        else:
            self._carry(line)
        return None

    def _send(self, request_id: object) -> None:
        line, sends = self._waiting[request_id]
        if sends >= SENDS_MAX:
            self._refuse(request_id)
        else:
            self._waiting[request_id] = (line, sends + 1)
            self._carry(line)

    def _carry(self, line: bytes) -> None:
        if self._daemon is not None:
            try:
                self._daemon.write(line)
            except OSError as failure:
                self._lose(failure)

    # from the daemon

    def _read_daemon(self, daemon: DaemonStream) -> None:
        try:
            lines = daemon.read()
        except (OSError, ValueError) as failure:
            return self._lose(failure)
        for line in lines:
            self._forget_answered(line)
            self._write_line(line)
        return None

    def _forget_answered(self, line: bytes) -> None:
        message = protocol.parse(line)
        if "method" not in message:
            self._waiting.pop(message.get("id"), None)

    def _lose(self, failure: OSError | ValueError) -> None:
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None
        self._failure = _unreachable(self._places[0], failure)
        self._grace_until = time.monotonic() + GRACE_S
        self._retry_at = 0.0

    # the connection

    def _reach_daemon(self) -> None:
        """Connect and send the waiting requests; without a daemon, answer them here after the grace period."""
        try:
            self._daemon = self._connect()
        except (OSError, ValueError) as failure:
            self._failure = self._failure or _unreachable(self._places[0], failure)
        now = time.monotonic()
        if self._daemon is not None:
            self._failure = None
            for request_id in list(self._waiting):
                self._send(request_id)
        elif now < self._grace_until and self._waiting:
            self._retry_at = now + RETRY_S
        else:
            self._retry_at = now + IDLE_RETRY_S
            for request_id in list(self._waiting):
                self._refuse(request_id)
            self._failure = None

    def _connect(self) -> DaemonStream:
        query = {
            "as": self._name,
            "mesh": self._mesh,
            "program": self._program,
            "project": self._project,
            "key": self._key,
        }
        pairs = [f"{name}={_quote(value)}" for name, value in query.items() if value]
        target = f"/v1/mcp?pid={os.getppid()}&{'&'.join(pairs)}"
        for place in self._places[:-1]:
            if os.path.exists(f"{place}/sock"):  # noqa: PTH110 - pathlib is slow to load
                return DaemonStream(place, target)
        return DaemonStream(self._places[-1], target)

    # answers of the pipe itself

    def _refuse(self, request_id: object) -> None:
        """Answer a request in place of the daemon: with a tool list or the like, or with an error."""
        line, _ = self._waiting.pop(request_id)
        message = protocol.parse(line)
        failure = self._failure or _unreachable(self._places[0], ValueError("it ended during this call"))
        notice = f"{protocol.INSTRUCTIONS} {failure}. {failure.hint}"
        try:
            result = protocol.simple_result(message, _definitions(), notice)
            if result is None:
                body = protocol.error_body(failure.code, str(failure), failure.hint, failure.fields)
                result = protocol.refused_call(body)
            answer = protocol.response(message, result)
        except protocol.ProtocolError as fault:
            answer = protocol.error_response(message["id"], fault)
        self._write(answer)

    def _write(self, message: Message) -> None:
        self._write_line(protocol.encode(message))

    def _write_line(self, line: bytes) -> None:
        rest = line + b"\n"
        while rest:
            rest = rest[os.write(self._stdout, rest) :]


class LineBuffer:
    """Splits a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> list[bytes]:
        """Return the lines that the data completes; empty ones are dropped."""
        self._rest += data
        if b"\n" not in data:
            return []
        *lines, rest = self._rest.split(b"\n")
        self._rest = rest
        return [bytes(line) for line in lines if line.strip()]


class DaemonStream:
    """A request to the daemon whose body and response stay open: chunks out, chunks in."""

    def __init__(self, place: str, target: str) -> None:
        """Connect; raise OSError if no daemon answers, ValueError if it refuses."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._received = b""
        self._lines = LineBuffer()
        try:
            self._open(place, target)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, place: str, target: str) -> None:
        # the address of a socket has at most 107 bytes, the path of a home may be longer
        here = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fchdir(here)
        finally:
            os.close(here)
        self._socket.settimeout(ANSWER_S)
        self._socket.connect("sock")
        head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._socket.sendall(head.encode())
        while b"\r\n\r\n" not in self._received:
            self._receive()
        status, _, self._received = self._received.partition(b"\r\n\r\n")
        if status.split(b" ", 2)[1] != b"200":
            raise ValueError("it does not serve MCP; it may be older than this command: restart it")

    @property
    def descriptor(self) -> int:
        """The file descriptor to poll."""
        return self._socket.fileno()

    def write(self, line: bytes) -> None:
        """Send one line."""
        self._socket.sendall(b"%x\r\n%s\n\r\n" % (len(line) + 1, line))

    def read(self) -> list[bytes]:
        """Return the lines that have arrived; raise ConnectionError at the end of the stream."""
        self._receive()
        lines: list[bytes] = []
        while (chunk := self._next_chunk()) is not None:
            lines += self._lines.take(chunk)
        return lines

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self) -> None:
        data = self._socket.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("it closed the connection")
        self._received += data

    def _next_chunk(self) -> bytes | None:
        size, separator, rest = self._received.partition(b"\r\n")
        if not separator:
            return None
        end = int(size, 16)
        if len(rest) < end + 2:
            return None
        self._received = rest[end + 2 :]
        return rest[:end]


def _quote(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode("utf-8", "replace"))


def _definitions() -> list[Message]:
    """Return the tools of a daemon with default settings."""
    import json

    with open(f"{__file__.rpartition('/')[0]}/definitions.json", encoding="utf-8") as file:  # noqa: PTH123
        tools: list[Message] = json.load(file)
    return tools


def _unreachable(place: str, failure: OSError | ValueError) -> PosthouseError:
    from posthouse.model.errors import error

    if isinstance(failure, FileNotFoundError):
        reason = "there is no socket"
    elif isinstance(failure, TimeoutError):
        reason = "it did not answer in time"
    else:
        reason = getattr(failure, "strerror", None) or str(failure)
    return error("daemon_unreachable", daemon=f"{place}/sock", reason=reason)


if __name__ == "__main__":
    if run(sys.argv[1:]) != 0:
        sys.exit("usage: python -m posthouse.mcp.pipe [--as NAME] [--dir DIRECTORY] [--mesh MESH]")
