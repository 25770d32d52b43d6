"""Dead letters: list them, send one again, throw old ones away.

The files in failed/ are the truth. A letter that is sent again goes through the publish stage with a fresh budget
(access, back-pressure and breaker still decide) and leaves failed/ only when it was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.bus.directory import UNROUTED, endpoint_hash
from posthouse.bus.draft import Draft
from posthouse.bus.publish import Reserve
from posthouse.bus.results import Letter, PublishResult
from posthouse.model.envelope import decode_dead_letter
from posthouse.model.errors import PosthouseError, error
from posthouse.model.ids import validate_ulid
from posthouse.model.subjects import is_pattern
from posthouse.model.timestamps import parse_utc

if TYPE_CHECKING:
    from posthouse.bus.page import Page
    from posthouse.bus.session import Session


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
    hashes = [*session.directory.hashes(), UNROUTED] if subject is None else _mailboxes(session, subject)
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
    hash_, letter = _find(session, subject, id_)
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
    session.ledger.submit(Reserve(session, draft))
    result = await draft.future
    if result.delivered_to:
        _forget(session, hash_, letter, result.message_id)
    return result


def _find(session: Session, subject: str, id_: str) -> tuple[str, Letter]:
    own = endpoint_hash(subject)
    for hash_ in _mailboxes(session, subject):
        letter = read_letter(session, hash_, id_)
        if letter is not None and (hash_ == own or letter.subject == subject):
            return hash_, letter
    raise error("dead_letter_unknown", subject=subject, id=id_)


def _mailboxes(session: Session, subject: str) -> list[str]:
    """Return where letters of a subject can lie: its own mailbox, those that catch it, and unrouted."""
    book = session.ledger.run(lambda page: page.book)
    caught = [] if is_pattern(subject) else [endpoint.hash for endpoint in book.catch_alls(subject)]
    return [endpoint_hash(subject), *caught, UNROUTED]


def _forget(session: Session, hash_: str, letter: Letter, message_id: str) -> None:
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


def _record_purge(page: Page, hash_: str, ids: list[str]) -> Any:
    return page.tx.append("bus.purged", ref=hash_, body={"ids": ids})
