"""The plain way to a daemon: HTTP over its socket with the standard library, safe to use from several threads.

Connections are kept for the next call. One that the daemon has closed meanwhile shows only when it is used; a call
that may be repeated is then sent once more on a new one, any other call gets a new connection from the start.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from posthouse.client.daemon.call import Call, refusal
from posthouse.client.daemon.place import DaemonPlace, SocketAddress, unreachable
from posthouse.client.daemon.sse import EventReader
from posthouse.client.daemon.values import DaemonEvent
from posthouse.model.errors import error

T = TypeVar("T")
KEPT = 16  # idle connections; a program with more threads opens anew
_BROKEN = (OSError, http.client.HTTPException)


class Wire:
    """Carries out calls."""

    def __init__(self, place: DaemonPlace, timeout_s: float) -> None:
        self.place = place
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._guard = threading.Lock()
        self._is_closed = False

    def ask(self, call: Call[T]) -> T:
        """Return the answer of a call."""
        kept = self._take() if call.is_repeatable else None
        if kept is not None:
            try:
                return self._exchange(kept, call)
            except _BROKEN as failure:
                kept.close()
                if isinstance(failure, TimeoutError):  # it is there and busy: asking again makes it worse
                    raise unreachable(self.place, failure) from failure
        fresh = self._connect(call.wait_s)
        try:
            return self._exchange(fresh, call)
        except _BROKEN as failure:
            fresh.close()
            raise unreachable(self.place, failure) from failure

    @contextmanager
    def stream(self, headers: Mapping[str, str], silence_s: float) -> Iterator[Iterator[DaemonEvent]]:
        """Open the stream of events, on a connection of its own; the daemon breaks its silence by comments."""
        connection = self._connect(silence_s - self._timeout_s)
        try:
            connection.request("GET", "/v1/events", headers=self._headers(headers))
            response = connection.getresponse()
            if response.status != 200:
                raise refusal(response.status, response.read(), str(self.place))
            yield _events(response)
        except _BROKEN as failure:
            raise unreachable(self.place, failure) from failure
        finally:
            connection.close()

    def text(self, path: str) -> str:
        """Return an answer that is plain text."""
        connection = self._connect(0)
        try:
            connection.request("GET", path, headers=self._headers({}))
            response = connection.getresponse()
            data = response.read()
        except _BROKEN as failure:
            raise unreachable(self.place, failure) from failure
        finally:
            connection.close()
        if response.status != 200:
            raise refusal(response.status, data, str(self.place))
        return data.decode()

    def close(self) -> None:
        """Close every connection that is not in use; what is in use ends with its call."""
        with self._guard:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(self, connection: http.client.HTTPConnection, call: Call[T]) -> T:
        if connection.sock is not None:
            connection.sock.settimeout(self._timeout_s + call.wait_s)
        data = call.encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        connection.request(call.method, call.target, body=data, headers=self._headers({**headers, **call.headers}))
        response = connection.getresponse()
        answered = response.read()
        self._give_back(connection, response)
        return call.answer(response.status, answered, str(self.place))

    def _take(self) -> http.client.HTTPConnection | None:
        with self._guard:
            return self._idle.pop() if self._idle else None

    def _give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        with self._guard:
            if not (response.will_close or self._is_closed) and len(self._idle) < KEPT:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, wait_s: float) -> http.client.HTTPConnection:
        if self._is_closed:
            raise error("client_closed", hint="Make a new DaemonClient.")
        bound_s = self._timeout_s + max(0.0, wait_s)
        made = _TcpConnection(self.place, bound_s) if self.place.is_tcp else _SocketConnection(self.place, bound_s)
        try:
            made.connect()
        except OSError as failure:
            raise unreachable(self.place, failure) from failure
        return made

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        return {**given, "Authorization": f"Bearer {self.place.token()}"} if self.place.is_tcp else dict(given)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, place: DaemonPlace, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._place = place

    def connect(self) -> None:
        address = SocketAddress(self._place)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(self.timeout)
            made.connect(address.path)
        except OSError:
            made.close()
            raise
        finally:
            address.close()
        self.sock = made


class _TcpConnection(http.client.HTTPConnection):
    def __init__(self, place: DaemonPlace, timeout_s: float) -> None:
        super().__init__("127.0.0.1", place.port(), timeout=timeout_s)


def _events(response: http.client.HTTPResponse) -> Iterator[DaemonEvent]:
    reader = EventReader()
    while line := response.readline():
        event = reader.take(line)
        if event is not None:
            yield event
