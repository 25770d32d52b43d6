"""Dead letters: list, observe, requeue and purge them.

The files in failed/ are the truth. A requeued letter goes through publishing with a fresh budget (access, back-
pressure and breaker still decide) and leaves failed/ only when it was stored. Observers see the dead letters of all
processes, in the order of the journal; one that was requeued before it could be read is shown from its record,
without an envelope.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.admission import Draft
from posthouse.bus.data_directory import UNROUTED, endpoint_hash
from posthouse.bus.publishing import ReservePublish
from posthouse.bus.results import Letter, PublishResult
from posthouse.bus.taps import Follower
from posthouse.journal.read import read_extent
from posthouse.journal.records import Record
from posthouse.model.clock import format_utc, parse_utc
from posthouse.model.envelope import decode_dead_letter
from posthouse.model.errors import PosthouseError, error
from posthouse.model.subjects import is_pattern
from posthouse.model.ulid import validate_ulid

if TYPE_CHECKING:
    from posthouse.bus.session import Session
    from posthouse.bus.transaction import BusTransaction


def read_letter(session: Session, hash_: str, id_: str) -> Letter | None:
    """Return one dead letter; None when it is gone or no dead letter."""
    mailbox = session.find_mailbox(hash_)
    if mailbox is None:
        return None
    try:
        letter = decode_dead_letter(mailbox.read(f"failed/{id_}"))
    except (OSError, PosthouseError):
        return None
    endpoint = session.ledger.book.by_hash.get(hash_)
    subject = letter.envelope.subject if letter.envelope else (endpoint.subject if endpoint else "")
    return Letter(id_, subject, hash_, letter.reason, letter.failed_at, letter.envelope)


def list_letters(session: Session, subject: str | None = None) -> list[Letter]:
    """Return the dead letters of one endpoint, or all, oldest first."""
    hashes = [*session.directory.hashes(), UNROUTED] if subject is None else _candidate_mailboxes(session, subject)
    found = [letter for hash_ in hashes for letter in _letters(session, hash_)]
    if subject is not None:
        own = endpoint_hash(subject)
        found = [letter for letter in found if letter.endpoint_hash == own or letter.subject == subject]
    return sorted(found, key=lambda letter: (letter.id, letter.endpoint_hash))


def _letters(session: Session, hash_: str) -> Iterator[Letter]:
    mailbox = session.find_mailbox(hash_)
    for name in [] if mailbox is None else mailbox.names("failed"):
        if (letter := read_letter(session, hash_, name)) is not None:
            yield letter


async def requeue(session: Session, subject: str, id_: str) -> PublishResult:
    """Publish a dead letter again, with a fresh budget."""
    validate_ulid(id_)
    hash_, letter = _find_letter(session, subject, id_)
    if letter.envelope is None:
        raise error("dead_letter_unknown", subject=subject, id=id_, hint="What is left of it is no message.")
    envelope = letter.envelope
    draft = Draft(
        envelope.subject,
        msgspec.Raw(msgspec.json.encode(envelope.payload)),
        envelope.from_,
        session.loop.create_future(),
        reply_to=envelope.reply_to,
        requeued_from=id_,
    )
    session.ledger.submit(ReservePublish(session, draft))
    result = await draft.future
    if result.delivered_to:
        _remove_requeued(session, hash_, letter, result.message_id)
    return result


def _find_letter(session: Session, subject: str, id_: str) -> tuple[str, Letter]:
    own = endpoint_hash(subject)
    for hash_ in _candidate_mailboxes(session, subject):
        letter = read_letter(session, hash_, id_)
        if letter is not None and (hash_ == own or letter.subject == subject):
            return hash_, letter
    raise error("dead_letter_unknown", subject=subject, id=id_)


def _candidate_mailboxes(session: Session, subject: str) -> list[str]:
    """Return where letters of a subject can lie: its own mailbox, those that catch it, and unrouted."""
    book = session.ledger.run(lambda page: page.book)
    caught = [] if is_pattern(subject) else [endpoint.hash for endpoint in book.catch_alls(subject)]
    return [endpoint_hash(subject), *caught, UNROUTED]


def _remove_requeued(session: Session, hash_: str, letter: Letter, message_id: str) -> None:
    endpoint = session.ledger.book.by_hash.get(hash_)
    body = {"endpoint": endpoint.subject if endpoint else letter.subject, "endpoint_hash": hash_}
    body |= {"message_id": message_id}
    session.ledger.run(lambda page: page.tx.append("bus.requeued", ref=letter.id, body=body))
    mailbox = session.find_mailbox(hash_)
    if mailbox is not None:
        mailbox.remove(f"failed/{letter.id}")


def purge(session: Session, older_than: timedelta) -> int:
    """Remove dead letters that are older; return how many went."""
    horizon_ns = session.clock.wall_ns() - round(older_than.total_seconds() * 1e9)
    count = 0
    for hash_ in [*session.directory.hashes(), UNROUTED]:
        old = [letter.id for letter in _letters(session, hash_) if parse_utc(letter.failed_at) < horizon_ns]
        mailbox = session.find_mailbox(hash_)
        if not old or mailbox is None:
            continue
        session.ledger.run(lambda page, hash_=hash_, old=old: _record_purge(page, hash_, old))  # type: ignore[misc]
        count += sum(mailbox.remove(f"failed/{id_}") for id_ in old)
    return count


def _record_purge(page: BusTransaction, hash_: str, ids: list[str]) -> Any:
    return page.tx.append("bus.purged", ref=hash_, body={"ids": ids})


LetterObserver = Callable[[Letter], Awaitable[Any] | Any]


async def observe_letters(session: Session, observer: LetterObserver) -> Follower:
    """Tell `observer` of every dead letter from now on."""

    async def take(record: Record) -> None:
        body = record.decoded_body()
        id_ = record.ref or ""
        letter = read_letter(session, body["endpoint_hash"], id_) or Letter(
            id_, body["subject"], body["endpoint_hash"], body["reason"], format_utc(record.at_ns), None
        )
        answer = observer(letter)
        if inspect.isawaitable(answer):
            await answer

    session.ledger.flush()
    extent = await session.store.pool.run(read_extent)
    return session.followers.add(extent.head, ("bus.failed", "bus.dead"), take)
