"""The methods of an open bus for operators: access rules, dead letters, breakers, counts, the index and the journal.

Administration is the base class of Bus. Before a method does anything, the property `_open` refuses a closed bus and
callers on another event loop or thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from functools import partial

import msgspec

from posthouse.bus import dead_letters, endpoints
from posthouse.bus.data_directory import endpoint_hash
from posthouse.bus.dead_letters import DeadLetterObserver
from posthouse.bus.handlers import Unsubscribe
from posthouse.bus.letter_counts import read_letter_counts
from posthouse.bus.options import check_count, check_type
from posthouse.bus.results import BreakerView, IndexRow, Letter, Metrics, PublishResult
from posthouse.bus.session import Session
from posthouse.journal.digest import Record
from posthouse.journal.read import read_after, read_extent
from posthouse.model.access_rules import AccessRule
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import DEAD_LETTER_KEEP_DAYS
from posthouse.model.subjects import validate_subject


class Administration(ABC):
    """The methods of Bus for operators."""

    def problems(self) -> list[PosthouseError]:
        """Return the errors in the operator's files, as last read."""
        core = self._opened.core
        return [failure for failure in (core.policy.rules.error, core.config.error) if failure is not None]

    async def sweep(self) -> None:
        """Sweep expired messages and the leftovers of dead processes now, instead of within a minute."""
        await self._open.housekeeping.sweep()

    @property
    def session(self) -> Session:
        """The parts of this bus, for code that builds on them; raises bus_closed."""
        return self._open

    @property
    @abstractmethod
    def _opened(self) -> Session:
        """The session, wherever the caller runs; raises bus_closed, or the failure that ended the session."""

    @property
    @abstractmethod
    def _open(self) -> Session:
        """The session, for a caller on the event loop of the bus."""

    async def _flushed(self) -> Session:
        session = self._open
        await session.core.ledger.flush()
        return session

    # access rules

    async def add_rule(self, rule: AccessRule) -> None:
        """Add a rule for all processes, replacing one with the same patterns."""
        check_type("rule", rule, AccessRule, required=True)
        self._open.core.policy.rules.change(lambda rules: rules.with_rule(rule))

    async def remove_rule(self, from_: str, to: str) -> None:
        """Remove the rules that have exactly these patterns."""
        self._open.core.policy.rules.change(lambda rules: rules.without_rule(from_, to))

    async def list_rules(self) -> list[AccessRule]:
        """Return the rules in force; raise if the rule file is broken."""
        return list(self._open.core.policy.rules.rules().rules)

    # dead letters and breakers

    async def dead_letters(self, subject: str | None = None) -> list[Letter]:
        """Return the dead letters of one endpoint or of all, oldest first."""
        if subject is not None:
            validate_subject(subject, allow_wildcards=True)
        return await dead_letters.list_dead_letters((await self._flushed()).core, subject)

    async def requeue(self, subject: str, id: str) -> PublishResult:  # noqa: A002 - the word of the API
        """Publish a dead letter again, with a fresh budget."""
        validate_subject(subject, allow_wildcards=True)
        return await dead_letters.requeue(self._open.publisher, subject, id)

    async def purge(self, older_than: timedelta = timedelta(days=DEAD_LETTER_KEEP_DAYS)) -> int:
        """Remove dead letters that are older; return how many."""
        return await dead_letters.purge(self._open.core, older_than)

    async def on_dead_letter(self, observer: DeadLetterObserver) -> Unsubscribe:
        """Pass every new dead letter to `observer`."""
        followers = self._open.followers
        follower = await dead_letters.observe_dead_letters(followers, observer)

        async def unsubscribe() -> None:
            await followers.end(follower)

        return unsubscribe

    async def breakers(self) -> list[BreakerView]:
        """Return the breaker of every endpoint."""
        return await endpoints.list_breakers(self._open.core)

    async def reset_breaker(self, subject: str) -> None:
        """Close the breaker of an endpoint."""
        core = self._open.core
        await endpoints.reset_breaker(core, await endpoints.find_endpoint(core, subject))

    # the index

    async def metrics(self) -> Metrics:
        """Return the number of messages by status and by subject, and of dead letters by mailbox."""
        session = await self._flushed()
        found = await session.index.run(session.index.index.metrics)
        return msgspec.structs.replace(found, dead_letters=await read_letter_counts(session.core))

    async def find_messages(
        self,
        *,
        subject: str | None = None,
        endpoint: str | None = None,
        status: str | None = None,
        after: str | None = None,
        limit: int = 1_000,
    ) -> list[IndexRow]:
        """Return messages from the index by subject, endpoint and status, oldest first."""
        for name, text in (("subject", subject), ("endpoint", endpoint), ("status", status), ("after", after)):
            check_type(name, text, str)
        check_count("limit", limit)
        index = (await self._flushed()).index
        hash_ = None if endpoint is None else endpoint_hash(endpoint)
        return await index.run(lambda: index.index.find(subject, hash_, status, after, limit))

    async def rebuild_index(self) -> int:
        """Rebuild the index from the files; return the number of messages found."""
        index = (await self._flushed()).index
        return await index.run(index.index.rebuild)

    async def read_journal(self, after_seq: int, limit: int = 1_000) -> list[Record]:
        """Return the journal records after a seq, in order."""
        check_count("after_seq", after_seq, 0)
        check_count("limit", limit)
        pool = (await self._flushed()).core.store.pool
        return await pool.run(partial(read_after, seq=after_seq, limit=limit))

    async def journal_head(self) -> int:
        """Return the seq of the newest journal record."""
        return (await (await self._flushed()).core.store.pool.run(read_extent)).head
