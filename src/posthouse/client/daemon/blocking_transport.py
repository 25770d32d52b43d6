"""The transport of the blocking client of a daemon: http.client over a Unix socket or loopback TCP.

Connections are kept. A repeatable call whose kept connection was closed is sent again on a new one; any other call gets
a new connection from the start. Threads may share one transport.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from posthouse.client.daemon.calls import Call, refusal
from posthouse.client.daemon.event_stream import EventReader
from posthouse.client.daemon.local_api import DaemonEvent
from posthouse.client.daemon.locate import DaemonAddress, SocketAddress, request_headers, unreachable
from posthouse.model.errors import error

T = TypeVar("T")
IDLE_CONNECTIONS_MAX = 16  # beyond it a connection is closed after its call
_BROKEN = (OSError, http.client.HTTPException)


class BlockingTransport:
    """Executes calls over kept connections."""

    def __init__(self, address: DaemonAddress, timeout_s: float, agent: str) -> None:
        self._address = address
        self._agent = agent
        self._timeout_s = timeout_s
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._is_closed = False

    def execute(self, call: Call[T]) -> T:
        """Return the answer of a call, or raise its refusal or daemon_unreachable."""
        kept = self._take() if call.is_repeatable else None
        if kept is not None:
            try:
                return self._exchange(kept, call)
            except _BROKEN as failure:
                kept.close()
                if isinstance(failure, TimeoutError):  # a busy daemon: a second request would make it worse
                    raise unreachable(self._address, failure) from failure
        fresh = self._connect(call.wait_s)
        try:
            return self._exchange(fresh, call)
        except _BROKEN as failure:
            fresh.close()
            raise unreachable(self._address, failure) from failure

    @contextmanager
    def stream(self, headers: Mapping[str, str], silence_s: float) -> Iterator[Iterator[DaemonEvent]]:
        """Open the stream of events on its own connection; it fails after `silence_s` without even a comment."""
        connection = self._connect(silence_s - self._timeout_s)
        try:
            connection.request("GET", "/v1/events", headers=self._headers(headers))
            response = connection.getresponse()
            if response.status != 200:
                raise refusal(response.status, response.read(), str(self._address))
            yield _events(response)
        except _BROKEN as failure:
            raise unreachable(self._address, failure) from failure
        finally:
            connection.close()

    def text(self, path: str) -> str:
        """Return an answer in plain text."""
        connection = self._connect(0)
        try:
            connection.request("GET", path, headers=self._headers({}))
            response = connection.getresponse()
            data = response.read()
        except _BROKEN as failure:
            raise unreachable(self._address, failure) from failure
        finally:
            connection.close()
        if response.status != 200:
            raise refusal(response.status, data, str(self._address))
        return data.decode()

    def close(self) -> None:
        """Close the idle connections; the others are closed after their calls."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(self, connection: http.client.HTTPConnection, call: Call[T]) -> T:
        if connection.sock is not None:
            connection.sock.settimeout(self._timeout_s + call.wait_s)
        data = call.encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        connection.request(call.method, call.target, body=data, headers=self._headers(headers))
        response = connection.getresponse()
        answered = response.read()
        self._keep(connection, response)
        return call.answer(response.status, answered, str(self._address))

    def _take(self) -> http.client.HTTPConnection | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        with self._lock:
            if not (response.will_close or self._is_closed) and len(self._idle) < IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self, wait_s: float) -> http.client.HTTPConnection:
        if self._is_closed:
            raise error("client_closed", hint="Make a new DaemonClient.")
        bound_s = self._timeout_s + max(0.0, wait_s)
        kind = _TcpConnection if self._address.is_tcp else _SocketConnection
        made = kind(self._address, bound_s)
        try:
            made.connect()
        except OSError as failure:
            raise unreachable(self._address, failure) from failure
        return made

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        return request_headers(self._address, self._agent, given)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, daemon: DaemonAddress, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._daemon = daemon

    def connect(self) -> None:
        address = SocketAddress(self._daemon)
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
    def __init__(self, daemon: DaemonAddress, timeout_s: float) -> None:
        super().__init__("127.0.0.1", daemon.port(), timeout=timeout_s)


def _events(response: http.client.HTTPResponse) -> Iterator[DaemonEvent]:
    reader = EventReader()
    while line := response.readline():
        event = reader.take(line)
        if event is not None:
            yield event
