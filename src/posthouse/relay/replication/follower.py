"""`posthouse relay follow`: keep a copy of another relay's store, group by group, until it is promoted or stopped.

    copy of the store -> changes -> changes -> ...        follow_restart or copy_invalid -> a new copy

The follower continues from its own position after a crash of either side. When the leader cannot continue from there
(it was restored or migrated, or the follower was away for too long), the follower takes a new copy by itself; until
that is complete it keeps the old one. It serves no clients and sweeps nothing: only the leader's changes are applied to
the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from posthouse.client import Client
from posthouse.client.failures import Backoff
from posthouse.files import write_atomic
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, Transient, error
from posthouse.model.limits import SECOND_NS
from posthouse.relay.metrics import Meters
from posthouse.relay.replication.followed_copy import (
    LEADER_NAME,
    FollowedCopy,
    Leader,
    read_leader,
    remove_partial_copies,
    replace_copy,
)
from posthouse.relay.store.sqlite.store import COPY_NAME, FILE_NAME
from posthouse.relay.wire.change_groups import ChangesPage, decode_page

log = structlog.get_logger(__name__)
POLL_S = 5.0  # how long a request waits for a change; a leader that is silent for longer is lost
_SILENT_S = 2 * POLL_S
_RETRY_MAX_S = 10.0
#: only a new copy helps
_TAKE_COPY = frozenset({"follow_restart", "copy_invalid"})
#: worth another try: the leader restarts, or its network is gone
_TRY_AGAIN = frozenset({"relay_unreachable", "token_invalid", "answer_invalid", "relay_stopping"})


class Follower:
    """Follows one relay into one directory, whose lock the caller holds."""

    def __init__(
        self, client: Client, directory: Path, clock: Clock, on_complete: Callable[[int], None] = lambda _head: None
    ) -> None:
        self._client = client
        self._directory = directory
        self._clock = clock
        #: called with the head of the copy once it has everything the leader had
        self._on_complete = on_complete
        self._copy: FollowedCopy | None = None
        self._leader_head = 0
        self._complete_at_ns = clock.boot_ns()
        self._backoff = Backoff(max_s=_RETRY_MAX_S)

    def watch_metrics(self, meters: Meters) -> None:
        """Connect the gauges of a follower to their sources."""
        meters.watch("posthouse_relay_follower_lag_seconds", lambda: self.lag_s)
        meters.watch("posthouse_relay_follower_lag_records", lambda: self.lag_records)
        meters.watch("posthouse_relay_journal_head", lambda: self.head)

    @property
    def head(self) -> int:
        """The newest seq of the copy."""
        return 0 if self._copy is None else self._copy.head

    @property
    def lag_records(self) -> int:
        """How many records the copy lacks, as of the leader's last answer."""
        return max(0, self._leader_head - self.head)

    @property
    def lag_s(self) -> float:
        """How long the copy was not known to be complete; 0 while the leader answers that nothing is missing."""
        silent_s = (self._clock.boot_ns() - self._complete_at_ns) / SECOND_NS
        return silent_s if self.lag_records or silent_s > _SILENT_S else 0.0

    async def run(self) -> None:
        """Follow until cancelled; raise failures that only an operator can fix."""
        if (self._directory / FILE_NAME).exists():
            raise error("store_exists", path=str(self._directory / FILE_NAME))
        remove_partial_copies(self._directory)
        try:
            self._open_copy()
            while True:
                try:
                    await self._follow()
                except PosthouseError as failure:
                    await self._recover(failure)
        finally:
            self._close_copy()

    async def _follow(self) -> None:
        """Make a copy if there is none, and apply changes as they arrive."""
        await self._check_leader()
        if self._copy is None:
            self._copy = await replace_copy(self._directory, self._client.copies.read_store())
            log.info("copy_taken", seq=self._copy.head)
        while True:
            page = await self._read_page(self._copy)
            if page.groups:
                await asyncio.to_thread(self._copy.apply, page.groups)
            self._leader_head = page.head
            self._backoff.attempts = 0
            if page.is_complete:
                self._complete_at_ns = self._clock.boot_ns()
                self._on_complete(self._copy.head)

    async def _read_page(self, copy: FollowedCopy) -> ChangesPage:
        stream, number, digest = copy.position
        data = await self._client.copies.read_changes(stream, number, digest, head=copy.head, wait_s=POLL_S)
        try:
            return decode_page(data)
        except msgspec.DecodeError as fault:
            raise error("answer_invalid", relay=self._client.url.origin, reason=str(fault)) from fault

    async def _check_leader(self) -> None:
        """Refuse any relay but the one that the directory follows; the first one is noted."""
        await self._client.token()
        relay = self._client.relay
        assert relay is not None  # a token comes after the relay has named itself
        known = read_leader(self._directory)
        if known is not None and known.relay != relay:
            reason = f"it belongs to the relay {known.relay}, but {self._client.url.origin} is {relay}"
            raise error("copy_of_another", path=str(self._directory / COPY_NAME), reason=reason)
        leader = Leader(self._client.url.origin, relay)
        if known != leader:
            write_atomic(self._directory / LEADER_NAME, msgspec.json.encode(leader))

    async def _recover(self, failure: PosthouseError) -> None:
        """Prepare for another try after a failure, or raise it."""
        if failure.code in _TAKE_COPY:
            log.warning("copy_replaced", reason=str(failure))
            self._close_copy()
        elif not isinstance(failure, Transient) and failure.code not in _TRY_AGAIN:
            raise failure
        else:
            log.warning("leader_lost", reason=str(failure))
        await asyncio.sleep(self._backoff.next_s())

    def _open_copy(self) -> None:
        path = self._directory / COPY_NAME
        if not path.exists():
            return
        try:
            self._copy = FollowedCopy(path)
        except PosthouseError as failure:
            if failure.code not in ("copy_invalid", "store_damaged", "store_not_ours"):
                raise
            log.warning("copy_replaced", reason=str(failure))

    def _close_copy(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None
