"""Dead letters: list, observe, requeue and purge them.

The files in failed/ are the source of truth. A requeued dead letter is published with a fresh budget (access,
back-pressure and breaker still apply) and its file is removed only when the message was stored. Observers see the dead
letters of all processes, in the order of the journal; one that was requeued before it could be read is shown from its
record, without an envelope. After an endpoint is registered, the log reports how many unrouted dead letters match it.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from posthouse.bus.admission import Draft
from posthouse.bus.core import Core
from posthouse.bus.data_directory import UNROUTED, endpoint_hash
from posthouse.bus.index.message_index import IndexUpdater
from posthouse.bus.letter_counts import UNROUTED_NUMBER, remove_letters
from posthouse.bus.options import check_handler, check_type
from posthouse.bus.publishing import Publisher
from posthouse.bus.results import Letter, PublishResult
from posthouse.bus.taps import Follower, Followers
from posthouse.bus.transaction import BusTransaction
from posthouse.journal.digest import Record
from posthouse.journal.read import read_extent
from posthouse.log import get_log
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.envelope import decode_dead_letter
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS
from posthouse.model.subjects import is_pattern, matches
from posthouse.model.ulid import validate_ulid

log = get_log(__name__)
DeadLetterObserver = Callable[[Letter], Awaitable[Any] | Any]


def read_dead_letter(core: Core, hash_: str, id_: str) -> Letter | None:
    """Return one dead letter; None if the file is gone or is not a dead letter."""
    mailbox = core.directory.find_mailbox(hash_)
    if mailbox is None:
        return None
    try:
        found = decode_dead_letter(mailbox.read(f"failed/{id_}"))
    except (OSError, PosthouseError):
        return None
    endpoint = core.ledger.registry.by_hash.get(hash_)
    subject = found.envelope.subject if found.envelope else (endpoint.subject if endpoint else "")
    return Letter(
        id_,
        subject,
        hash_,
        found.reason,
        found.failed_at,
        found.envelope,
        found.error,
        found.refused,
        found.is_payload_dropped,
    )


async def list_dead_letters(core: Core, subject: str | None = None) -> list[Letter]:
    """Return the dead letters of one endpoint, or all, oldest first."""
    if subject is None:
        found = [letter for hash_ in _all_mailboxes(core) for letter in _dead_letters_in(core, hash_)]
    else:
        candidates = [
            letter for hash_ in await _mailboxes_for(core, subject) for letter in _dead_letters_in(core, hash_)
        ]
        found = [letter for letter in candidates if _belongs_to(letter, subject)]
    return sorted(found, key=lambda letter: (letter.id, letter.endpoint_hash))


def _belongs_to(letter: Letter, endpoint: str) -> bool:
    """Return True if the dead letter is in the endpoint's mailbox, or has none and would be routed there now."""
    if letter.endpoint_hash == endpoint_hash(endpoint) or letter.subject == endpoint:
        return True
    return letter.endpoint_hash == UNROUTED and not is_pattern(letter.subject) and matches(letter.subject, endpoint)


def _dead_letters_in(core: Core, hash_: str) -> Iterator[Letter]:
    mailbox = core.directory.find_mailbox(hash_)
    for name in [] if mailbox is None else mailbox.names("failed"):
        if (letter := read_dead_letter(core, hash_, name)) is not None:
            yield letter


def _all_mailboxes(core: Core) -> list[str]:
    return [*core.directory.hashes(), UNROUTED]


async def _mailboxes_for(core: Core, subject: str) -> list[str]:
    """Return the mailboxes that can hold dead letters of a subject: its own, those of catch-alls, and unrouted."""
    registry = await core.ledger.run(lambda tx: tx.registry)
    catch_alls = [] if is_pattern(subject) else [endpoint.hash for endpoint in registry.catch_alls(subject)]
    return [endpoint_hash(subject), *catch_alls, UNROUTED]


async def requeue(publisher: Publisher, subject: str, id_: str) -> PublishResult:
    """Publish a dead letter again, with a fresh budget."""
    validate_ulid(id_)
    letter = await _find(publisher.core, subject, id_)
    envelope = letter.envelope
    if envelope is None:
        raise error("dead_letter_unknown", subject=subject, id=id_, hint="This dead letter holds no message.")
    if letter.is_payload_dropped:
        raise error("dead_letter_trimmed", id=id_)
    result = await publisher.publish(
        Draft(
            envelope.subject,
            envelope.payload,
            envelope.from_,
            reply_to=envelope.reply_to,
            in_reply_to=envelope.in_reply_to,
            requeued_from=id_,
        )
    )
    if result.delivered_to:
        await _remove_requeued(publisher.core, letter, result.message_id)
    return result


async def _find(core: Core, subject: str, id_: str) -> Letter:
    for hash_ in await _mailboxes_for(core, subject):
        letter = read_dead_letter(core, hash_, id_)
        if letter is not None and _belongs_to(letter, subject):
            return letter
    raise error("dead_letter_unknown", subject=subject, id=id_)


async def _remove_requeued(core: Core, letter: Letter, message_id: str) -> None:
    endpoint = core.ledger.registry.by_hash.get(letter.endpoint_hash)
    body = {
        "endpoint": endpoint.subject if endpoint else letter.subject,
        "endpoint_hash": letter.endpoint_hash,
        "message_id": message_id,
    }
    number = UNROUTED_NUMBER if endpoint is None else endpoint.number

    def work(tx: BusTransaction) -> None:
        remove_letters(tx, number, [letter.id])
        tx.journal.append("bus.requeued", ref=letter.id, body=body)

    await core.ledger.run(work)
    mailbox = core.directory.find_mailbox(letter.endpoint_hash)
    if mailbox is not None:
        mailbox.remove(f"failed/{letter.id}")


async def purge(core: Core, older_than: timedelta) -> int:
    """Remove dead letters older than the given age; return how many."""
    check_type("older_than", older_than, timedelta, required=True)
    if older_than < timedelta(0):
        raise error("value_invalid", name="older_than", reason=f"{older_than} is negative")
    horizon_ns = core.clock.wall_ns() - round(older_than.total_seconds() * SECOND_NS)
    count = 0
    for hash_ in _all_mailboxes(core):
        old = [letter.id for letter in _dead_letters_in(core, hash_) if parse_utc(letter.failed_at) < horizon_ns]
        mailbox = core.directory.find_mailbox(hash_)
        if not old or mailbox is None:
            continue
        await core.ledger.run(lambda tx, hash_=hash_, old=old: _record_purge(tx, hash_, old))  # type: ignore[misc]
        count += sum(mailbox.remove(f"failed/{id_}") for id_ in old)
    return count


def _record_purge(tx: BusTransaction, hash_: str, ids: list[str]) -> None:
    endpoint = tx.registry.by_hash.get(hash_)
    remove_letters(tx, UNROUTED_NUMBER if endpoint is None else endpoint.number, ids)
    tx.journal.append("bus.purged", ref=hash_, body={"ids": ids})


async def observe_dead_letters(followers: Followers, observer: DeadLetterObserver) -> Follower:
    """Pass every new dead letter to `observer`."""
    check_handler("observer", observer)
    core = followers.core

    async def on_record(record: Record) -> None:
        body = record.decoded_body()
        hash_, id_ = body["endpoint_hash"], record.ref or ""
        letter = read_dead_letter(core, hash_, id_)
        if letter is None:
            letter = Letter(id_, body["subject"], hash_, body["reason"], format_utc(record.at_ns), None)
        result = observer(letter)
        if inspect.isawaitable(result):
            await result

    await core.ledger.flush()
    extent = await core.store.pool.run(read_extent)
    return followers.add(extent.head, ("bus.failed", "bus.dead"), on_record)


class UnroutedLetters:
    """Logs how many dead letters of unrouted/ were meant for an endpoint, after it was registered.

    Endpoints that are registered while a query runs share the next one, so that registering many stays fast.
    """

    def __init__(self, core: Core, index: IndexUpdater) -> None:
        self._core = core
        self._index = index
        self._registered: list[str] = []
        self._task: asyncio.Task[None] | None = None

    def on_registered(self, subject: str) -> None:
        """Look for dead letters that match the endpoint."""
        if not self._core.directory.unrouted.names("failed"):
            return
        self._registered.append(subject)
        if self._task is None:
            self._task = self._core.loop.create_task(self._report(), context=self._core.context.copy())

    async def close(self) -> None:
        if self._task is not None:
            await self._task

    async def _report(self) -> None:
        try:
            while self._registered:
                subjects, self._registered = self._registered, []
                counts = await self._index.run(lambda: self._index.index.dead_subjects(UNROUTED))
                for subject in subjects:
                    _log_unrouted(subject, counts, self._core.directory.root)
        except PosthouseError as failure:
            log.info("unrouted_letters_not_counted", reason=str(failure))
        finally:
            self._task = None


def _log_unrouted(endpoint: str, counts: dict[str, int], root: Path) -> None:
    letters = sum(count for subject, count in counts.items() if not is_pattern(subject) and matches(subject, endpoint))
    if letters:
        command = shlex.join(
            ["posthouse", "bus", "dead", "requeue", "--endpoint", endpoint, "--all", "--dir", str(root)]
        )
        log.warning("dead_letters_match_endpoint", subject=endpoint, letters=letters, command=command)
