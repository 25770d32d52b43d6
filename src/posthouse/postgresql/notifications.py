"""Wait for notifications of PostgreSQL on a separate thread, and wake up regularly even without one.

A notification only says that there is something to read: it may get lost with its session, so the thread also calls
back after a while without one, and at once after it has connected again. The callback decides what to read, and in
which order.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence

import psycopg

from posthouse.log import get_log
from posthouse.model.errors import PosthouseError
from posthouse.postgresql.server_connection import ServerConnection, open_session
from posthouse.postgresql.store_url import shown_url
from posthouse.storage.handover import WakeUp

log = get_log(__name__)
_RETRY_S = 0.2  # between two attempts to connect
#: Called on the thread with the channel and the text of each notification; with none after a while, or a reconnect.
OnNotifications = Callable[[Sequence[tuple[str, str]]], None]


class Notifications:
    """A session that listens, and the thread that waits for it."""

    def __init__(self, url: str, channels: Sequence[str], on_notifications: OnNotifications, every_s: float) -> None:
        self._url = url
        self._channels = channels
        self._on_notifications = on_notifications
        self._every_s = every_s
        self._is_closed = False
        self._wake_up = WakeUp()
        self._thread = threading.Thread(target=self._serve, name="postgresql notifications", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; a callback that runs ends first."""
        self._is_closed = True
        self._wake_up.notify()
        self._thread.join()

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                session = self._listen()
            except (PosthouseError, psycopg.Error):
                self._on_notifications(())
                self._wake_up.wait(_RETRY_S)
                continue
            try:
                self._on_notifications(())
                self._wait(session)
            except (psycopg.Error, OSError, ValueError) as lost:  # ValueError: the descriptor of a closed session
                log.warning("notifications_lost", store=shown_url(self._url), reason=str(lost))
            finally:
                session.close()

    def _listen(self) -> ServerConnection:
        session = open_session(self._url, {})
        for channel in self._channels:
            session.queue(f"LISTEN {channel}")
        return session

    def _wait(self, session: ServerConnection) -> None:
        poll = select.poll()
        poll.register(session.fileno(), select.POLLIN)
        poll.register(self._wake_up.fileno(), select.POLLIN)
        while not self._is_closed:
            poll.poll(self._every_s * 1000)
            found = session.take_notifications()
            if not self._is_closed:
                self._on_notifications(found)
