"""The number of dead letters in each mailbox, and the limits on it.

bus.db has a row for each file in failed/ and triggers sum them up, in the transaction that records the dead letter.
Dead letters of refused messages are bounded: the oldest lose their payload when they take too much room, and the oldest
are deleted when there are too many. Those of accepted messages are never deleted here: at the bound the endpoint
refuses new mail (posthouse.bus.admission). The files are the source of truth. The file of a dead letter is changed
before its row, so a process that dies in between leaves a mailbox above the bound, where the next round finds the same
dead letters again; `recount` repairs the rest.
"""

from __future__ import annotations

import enum
from typing import Any

from posthouse.bus.core import Core
from posthouse.bus.data_directory import UNROUTED
from posthouse.bus.maildir import Mailbox, write_dead_letter
from posthouse.bus.results import LetterCount
from posthouse.bus.transaction import SQL, BusTransaction
from posthouse.log import get_log
from posthouse.model.envelope import DeadLetter, decode_dead_letter, without_payload
from posthouse.model.errors import PosthouseError
from posthouse.model.reliability import DeadLetterLimits, letters_refusal
from posthouse.model.ulid import validate_ulid

log = get_log(__name__)
UNROUTED_NUMBER = 0  # stands for unrouted/, which has no row among the endpoints
_BATCH_LETTERS = 32  # files changed in one transaction: a few milliseconds
_BATCH_BYTES = 8 * 1024 * 1024  # read in one transaction, to write them without their payload
_RECOUNT_BATCH = 500


class LetterKind(enum.IntEnum):
    """The column `kind` of a row in `letters`; bus.sql compares with the numbers."""

    ACCEPTED = 0
    """A mailbox had accepted the message: it is work, and never dropped."""
    REFUSED = 1
    TRIMMED = 2
    """A refused message without its payload."""


def _kind_of(letter: DeadLetter) -> LetterKind:
    """Return the kind of a dead letter; one of an older version has no kind: it counts as accepted, so it is kept."""
    if letter.refused is None:
        return LetterKind.ACCEPTED
    return LetterKind.TRIMMED if letter.is_payload_dropped else LetterKind.REFUSED


# counting, in the transaction that records the letter


def add_letter(tx: BusTransaction, number: int, id_: str, kind: LetterKind, size_bytes: int) -> None:
    """Count a dead letter, replacing an older one of the same id."""
    tx.db.execute(SQL.remove_letter, (number, id_))
    tx.db.execute(SQL.add_letter, (number, id_, int(kind), size_bytes))
    _refresh(tx, number)


def add_found_letter(tx: BusTransaction, number: int, mailbox: Mailbox, id_: str, letter: DeadLetter) -> None:
    """Count a dead letter whose file was found."""
    add_letter(tx, number, id_, _kind_of(letter), mailbox.size(f"failed/{id_}") or 0)


def remove_letters(tx: BusTransaction, number: int, ids: list[str]) -> list[str]:
    """Remove dead letters from the count; return the ids of those that were counted."""
    removed = []
    for id_ in ids:
        tx.db.execute(SQL.remove_letter, (number, id_))
        if tx.db.changes():
            removed.append(id_)
    _refresh(tx, number)
    return removed


def move_letters_to_unrouted(tx: BusTransaction, number: int) -> None:
    """Count the dead letters of a removed endpoint under unrouted/, where its files go."""
    tx.db.execute(SQL.remove_replaced_letters, (number,))
    tx.db.execute(SQL.copy_letters_to_unrouted, (number,))
    tx.db.execute(SQL.remove_letters_of_endpoint, (number,))
    tx.db.execute(SQL.remove_letter_count, (number,))


def _refresh(tx: BusTransaction, number: int) -> None:
    counters = tx.endpoint(number)
    if counters is not None:
        _refused, _refused_bytes, counters.failed, counters.failed_bytes = _count(tx, number)


def _count(tx: BusTransaction, number: int) -> tuple[int, int, int, int]:
    row: Any = tx.db.execute(SQL.letter_count, (number,)).fetchone()
    return row or (0, 0, 0, 0)


async def read_letter_counts(core: Core) -> tuple[LetterCount, ...]:
    """Return how many dead letters each mailbox holds."""
    rows: Any = await core.store.pool.run(lambda db: db.execute(SQL.letter_counts).fetchall())
    return tuple(LetterCount(*row) for row in rows)


# the bound of refused messages


def drop_excess(core: Core, tx: BusTransaction, number: int, hash_: str) -> None:
    """Delete or trim the oldest dead letters of refused messages if there are too many, a bounded number at a time."""
    limits = core.policy.reliability.dead_letters
    refused, refused_bytes, _failed, _failed_bytes = _count(tx, number)
    if not _is_above(refused, refused_bytes, limits):
        return
    mailbox = core.directory.find_mailbox(hash_)
    if mailbox is None:
        return
    round_ = _DroppingRound(core, tx, number, mailbox)
    try:
        round_.run(refused - limits.max_letters, refused_bytes - limits.max_bytes)
    except OSError as failure:  # the next round tries again
        log.warning("dead_letters_not_dropped", path=str(mailbox.path), reason=str(failure))
    round_.record(hash_)


def _is_above(count: int, size_bytes: int, limits: DeadLetterLimits) -> bool:
    return limits.enabled and (count > limits.max_letters or size_bytes > limits.max_bytes)


class _DroppingRound:
    """The dead letters of one mailbox that one transaction deletes or trims."""

    def __init__(self, core: Core, tx: BusTransaction, number: int, mailbox: Mailbox) -> None:
        self._core = core
        self._tx = tx
        self._number = number
        self._mailbox = mailbox
        self._dropped: list[str] = []
        self._trimmed: list[str] = []

    def run(self, excess_letters: int, excess_bytes: int) -> None:
        """Delete letters beyond the number, trim those beyond the size, then delete until the size fits."""
        for id_, size in self._oldest(SQL.oldest_refused, min(excess_letters, _BATCH_LETTERS)):
            self._drop(id_)
            excess_bytes -= size
        read_bytes, untrimmed = 0, self._oldest(SQL.oldest_untrimmed, _BATCH_LETTERS)
        for id_, size in untrimmed:
            if excess_bytes <= 0 or read_bytes >= _BATCH_BYTES:
                return
            excess_bytes -= size - self._trim(id_, size)
            read_bytes += size
        if len(untrimmed) == _BATCH_LETTERS:  # there may be more to trim
            return
        for id_, size in self._oldest(SQL.oldest_refused, _BATCH_LETTERS):
            if excess_bytes <= 0:
                return
            self._drop(id_)
            excess_bytes -= size

    def record(self, hash_: str) -> None:
        """Record which dead letters were deleted and trimmed."""
        if self._dropped:
            self._tx.journal.append("bus.purged", ref=hash_, body={"ids": self._dropped, "by_limit": True})
        if self._trimmed:
            self._tx.journal.append("bus.trimmed", ref=hash_, body={"ids": self._trimmed})

    def _oldest(self, statement: str, limit: int) -> list[tuple[str, int]]:
        rows: Any = self._tx.db.execute(statement, (self._number, max(0, limit))).fetchall()
        return list(rows)

    def _drop(self, id_: str) -> None:
        self._mailbox.remove(f"failed/{id_}")
        self._tx.db.execute(SQL.remove_letter, (self._number, id_))
        self._dropped.append(id_)

    def _trim(self, id_: str, size: int) -> int:
        """Write the dead letter without its payload; return its new size."""
        try:
            data = without_payload(self._mailbox.read(f"failed/{id_}"))
        except FileNotFoundError:  # removed by another program
            self._drop(id_)
            return 0
        except PosthouseError:  # damaged: it goes when dead letters are deleted
            add_letter(self._tx, self._number, id_, LetterKind.TRIMMED, size)
            return size
        write_dead_letter(self._mailbox, id_, self._core.instance.name, data, sync=self._core.is_power_safe)
        add_letter(self._tx, self._number, id_, LetterKind.TRIMMED, len(data))
        self._trimmed.append(id_)
        return len(data)


async def drop_all_excess(core: Core) -> None:
    """Drop the excess of every mailbox, after a bound was lowered or a round was left unfinished."""
    limits = core.policy.reliability.dead_letters
    for count in await read_letter_counts(core):
        if _is_above(count.refused, count.refused_bytes, limits):
            await core.ledger.run(lambda tx, count=count: drop_excess(core, tx, count.number, count.endpoint_hash))  # type: ignore[misc]


# files and rows


async def recount_full(core: Core) -> None:
    """Recount the mailboxes that refuse mail because of their dead letters: files may have been removed since."""
    limits = core.policy.reliability.dead_letters
    for count in await read_letter_counts(core):
        if letters_refusal(count.failed, count.failed_bytes, limits) is not None:
            await recount(core, count.number, count.endpoint_hash)


async def recount_all(core: Core) -> None:
    """Make the counted dead letters of every mailbox agree with its files."""
    registry = await core.ledger.run(lambda tx: tx.registry)
    for endpoint in list(registry.by_number.values()):
        await recount(core, endpoint.number, endpoint.hash)
    await recount(core, UNROUTED_NUMBER, UNROUTED)
    await core.ledger.run(lambda tx: tx.db.execute(SQL.set_has_letters))


async def recount(core: Core, number: int, hash_: str) -> None:
    """Make the counted dead letters of one mailbox agree with its files, in small transactions."""
    mailbox = core.directory.find_mailbox(hash_)
    rows: Any = await core.store.pool.run(lambda db: db.execute(SQL.letters, (number,)).fetchall())
    names = [] if mailbox is None else [name for name in mailbox.names("failed") if _is_id(name)]
    sizes = dict(rows)
    ids = [name for name in names if sizes.pop(name, None) != mailbox.size(f"failed/{name}")]  # type: ignore[union-attr]
    ids += sizes  # rows without a file
    for start in range(0, len(ids), _RECOUNT_BATCH):
        batch = ids[start : start + _RECOUNT_BATCH]
        await core.ledger.run(lambda tx, batch=batch: _recount(core, tx, number, hash_, batch))  # type: ignore[misc]


def _recount(core: Core, tx: BusTransaction, number: int, hash_: str, ids: list[str]) -> None:
    mailbox = core.directory.find_mailbox(hash_)
    for id_ in ids:
        try:
            letter = None if mailbox is None else decode_dead_letter(mailbox.read(f"failed/{id_}"))
        except (OSError, PosthouseError):  # gone, or not a dead letter
            letter = None
        if letter is None or mailbox is None:
            remove_letters(tx, number, [id_])
        else:
            add_found_letter(tx, number, mailbox, id_, letter)


def _is_id(name: str) -> bool:
    try:
        validate_ulid(name)
    except PosthouseError:
        return False
    return True
