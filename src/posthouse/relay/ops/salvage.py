"""Export the readable parts of a relay's store as JSON lines, and make a new store from such a file.

An export reads around damage: a page that cannot be read costs only the rows on it. An import trusts only signatures:
every event proves itself, in the order of its seq, through the same commit as a published one, so dedupe records,
deliveries and confirmations come out as they were. Rights and times are not checked again: the relay accepted these
events before. Invites, held locks and the journal are not exported; the counter of tokens is. If you change a line: 1.
a new format name, 2. keep reading the old one, 3. docs/how-to/relay-backup.md.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import apsw
import msgspec

from posthouse.files import FILE_MODE, fsync_dir, open_nofollow
from posthouse.journal.read import read_extent
from posthouse.journal.verify import DAMAGE
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.model.lease import first_counter
from posthouse.model.message import Confirmation
from posthouse.relay.accept.commit import commit_group
from posthouse.relay.accept.submission import Job, Submission, Submitter
from posthouse.relay.accept.verify import verify_job
from posthouse.relay.messages.accept import MessageHandlers
from posthouse.relay.messages.settings import DeliverySettings
from posthouse.relay.ops.maintenance import write_mark
from posthouse.relay.store.high_water import MarkFile
from posthouse.relay.store.protocol import Unit
from posthouse.relay.store.sqlite.meshes_and_locks import MESHES_SQL, last_token
from posthouse.relay.store.sqlite.queries import EVENTS_SQL
from posthouse.relay.store.sqlite.store import SqliteStore, stored_extent
from posthouse.relay.wire.accept_results import Answer, Declined
from posthouse.relay.wire.mesh_rows import AccessRow, MemberRow, MeshRow, MeshRows, MeshState, TopicRow
from posthouse.sqlite.connection import open_reader
from posthouse.sqlite.store_lock import lock_path, shared_store_lock

FORMAT = "posthouse-relay-export-v1"
_EVENTS_PER_GROUP = 200
_NO_LIMIT = 2**31  # of a queue: a message that the relay once accepted must not be refused now
_LARGEST_GAP = 2**40  # a search for readable rows gives up beyond it: no store has that many


class Header(msgspec.Struct, tag="header", forbid_unknown_fields=True):
    """The first line; values that could not be read are 0 or empty."""

    format: str
    epoch: str = ""
    head: int = 0
    token_counter: int = 0


class MeshLine(msgspec.Struct, tag="meshes", forbid_unknown_fields=True):
    """All meshes with their members, access rows, topics, subscriptions and blocks."""

    meshes: MeshRows


class EventLine(msgspec.Struct, tag="event", forbid_unknown_fields=True):
    """One event, as it was published."""

    seq: int
    event: msgspec.Raw


class End(msgspec.Struct, tag="end", forbid_unknown_fields=True):
    """The last line: without it the file is incomplete."""

    events: int
    unreadable: list[str]


#: lists of MeshRows and the type of their rows; None: tuples
_MESH_PARTS: dict[str, Any] = {
    "meshes": MeshRow,
    "members": MemberRow,
    "access": AccessRow,
    "topics": TopicRow,
    "subscriptions": None,
    "blocks": None,
}
_LINE = msgspec.json.Decoder(Header | MeshLine | EventLine | End)
_SUBMITTER = Submitter(lambda _submission: None, lambda _answers: None)  # an import has no connection to answer
_encode = msgspec.json.Encoder().encode


@dataclass
class Exported:
    """Counts of an export: what it wrote, and what it could not read."""

    events: int = 0
    unreadable: list[str] = field(default_factory=list)


def export_relay(path: Path, target: Path) -> Exported:
    """Write the new file `target` with everything of the store that can be read."""
    summary = Exported()
    try:
        fd = open_nofollow(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError as exc:
        raise error("backup_exists", path=str(target)) from exc
    with os.fdopen(fd, "wb") as file, shared_store_lock(path):
        db = open_reader(path)
        try:
            for line in _lines(db, summary):
                file.write(_encode(line) + b"\n")
        finally:
            db.close()
        file.flush()
        os.fsync(file.fileno())
    fsync_dir(target.parent)
    return summary


def _lines(db: apsw.Connection, summary: Exported) -> Iterator[Header | MeshLine | EventLine | End]:
    db.execute("BEGIN")
    header = Header(FORMAT)
    extent = _read(summary, "the journal", lambda: read_extent(db))
    if extent is not None:
        header.epoch, header.head = extent.epoch, extent.head
    header.token_counter = _read(summary, "the counter of tokens", lambda: last_token(db)) or 0
    yield header
    yield MeshLine(_readable_meshes(db, summary))
    for seq, raw in _readable_events(db, summary):
        summary.events += 1
        yield EventLine(seq, msgspec.Raw(raw))
    yield End(summary.events, summary.unreadable)


def _read(summary: Exported, name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (*DAMAGE, apsw.SQLError) as exc:
        summary.unreadable.append(f"{name}: {exc}")
        return None


def _readable_meshes(db: apsw.Connection, summary: Exported) -> MeshRows:
    parts: dict[str, Any] = {}
    for name, row_type in _MESH_PARTS.items():
        statement = getattr(MESHES_SQL, name)
        rows = _read(summary, name, partial(_fetch_all, db, statement)) or []
        parts[name] = [dict(zip(row_type.__struct_fields__, row, strict=True)) if row_type else row for row in rows]
    return msgspec.convert(parts, MeshRows, strict=False)


def _fetch_all(db: apsw.Connection, statement: str) -> list[Any]:
    return db.execute(statement, (None,)).fetchall()


def _readable_events(db: apsw.Connection, summary: Exported) -> Iterator[tuple[int, bytes]]:
    """Yield the events in order; continue after a page that cannot be read."""
    seq = 0
    while True:
        rows: Iterator[Any] = iter(db.execute(EVENTS_SQL.salvage, (seq,)))
        try:
            for seq, raw in rows:
                if raw is not None:
                    yield seq, raw
            return
        except DAMAGE:
            behind = _next_readable(db, seq)
            ends = "the end" if behind is None else str(behind)
            summary.unreadable.append(f"events with a seq above {seq}, up to {ends}")
            if behind is None:
                return
            seq = behind


def _next_readable(db: apsw.Connection, seq: int) -> int | None:
    """Return the smallest seq above this one after which the next event can be read, or None."""
    step = 1
    while not _is_readable(db, seq + step):
        step *= 2
        if step > _LARGEST_GAP:
            return None
    low, high = seq + step // 2, seq + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_readable(db, middle) else (middle, high)
    return high


def _is_readable(db: apsw.Connection, seq: int) -> bool:
    try:
        db.execute(f"{EVENTS_SQL.salvage} LIMIT 1", (seq,)).fetchall()
    except DAMAGE:
        return False
    return True


@dataclass
class Imported:
    """Counts of an import: what it wrote, and what it refused."""

    events: int = 0
    refused: list[str] = field(default_factory=list)


async def import_relay(source: Path, path: Path, clock: Clock, mark_file: MarkFile) -> Imported:
    """Make the store `path` from an export; it appears complete or not at all."""
    if stored_extent(path) is not None:
        raise error("store_exists", path=str(path))
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.imported")
    summary = Imported()
    try:
        store = SqliteStore(fresh, clock)
        try:
            await _fill(store, source, summary, clock)
        finally:
            store.close()
        fresh.rename(path)
        fsync_dir(path.parent)
    finally:
        for leftover in (fresh, lock_path(fresh)):
            leftover.unlink(missing_ok=True)
    write_mark(mark_file, path, clock)
    return summary


async def _fill(store: SqliteStore, source: Path, summary: Imported, clock: Clock) -> None:
    handlers = MessageHandlers(DeliverySettings(queue_max=_NO_LIMIT))
    group: list[EventLine] = []
    is_complete = False
    with source.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            line = _decode(source, number, text)
            if isinstance(line, EventLine):
                group.append(line)
            elif isinstance(line, Header):
                counter = first_counter(line.token_counter, clock.wall_ns())
                await store.submit(partial(_raise_counter, counter=counter))
            elif isinstance(line, MeshLine):
                await store.submit(partial(_add_meshes, rows=line.meshes))
            else:
                is_complete = True
            if len(group) >= _EVENTS_PER_GROUP:
                await _add_events(store, group, handlers, summary)
                group = []
    await _add_events(store, group, handlers, summary)
    await store.submit(lambda unit: unit.reindex())
    if not is_complete:
        summary.refused.append("the file ends before its last line: the export was cut off")


def _decode(source: Path, number: int, text: bytes) -> Header | MeshLine | EventLine | End:
    try:
        line: Header | MeshLine | EventLine | End = _LINE.decode(text)
    except msgspec.DecodeError as fault:
        raise error("value_invalid", name=f"{source}, line {number}", reason=str(fault)) from fault
    is_header = isinstance(line, Header) and line.format == FORMAT
    if (number == 1) != is_header:
        raise error("value_invalid", name=f"{source}, line {number}", reason=f"only the first line is of {FORMAT}")
    return line


async def _add_events(
    store: SqliteStore, lines: Sequence[EventLine], handlers: MessageHandlers, summary: Imported
) -> None:
    """Verify events and commit them in order; a confirmation needs the messages before it to be committed."""
    submissions = [Submission([bytes(line.event)], _SUBMITTER) for line in lines]
    for submission in submissions:
        _verify(submission.jobs[0])
    answers: list[Answer] = []
    for _, run in groupby(submissions, _is_confirmation):
        group = list(run)
        committed = await store.submit(partial(commit_group, submissions=group, kind_handlers=handlers, limited={}))
        answers += committed.answers
    for line, answer in zip(lines, answers, strict=True):
        if isinstance(answer, Declined):
            summary.refused.append(f"the event of seq {line.seq}: {answer.error}")
        else:
            summary.events += 1


def _verify(job: Job) -> None:
    verify_job(job)
    if job.row is not None and job.row.fence is not None:
        job.row = msgspec.structs.replace(job.row, fence=None)  # its lock is not imported; reindex reads the tag


def _is_confirmation(submission: Submission) -> bool:
    row = submission.jobs[0].row
    return row is not None and isinstance(row.payload, Confirmation)


def _raise_counter(unit: Unit, counter: int) -> None:
    unit.raise_token_counter(counter)


def _add_meshes(unit: Unit, rows: MeshRows) -> None:
    """Write meshes with their members, topics and other rows, each with its journal record for a replay."""
    for mesh in rows.meshes:
        unit.save_mesh(mesh)
        unit.append("mesh.created", mesh=mesh.mesh, actor=mesh.creator, ref=mesh.mesh, body={"open": mesh.is_open})
        if mesh.state is not MeshState.ACTIVE:
            unit.append(f"mesh.{mesh.state.value}", mesh=mesh.mesh, actor=mesh.creator, ref=mesh.mesh)
        if mesh.approves_keys:
            unit.append("mesh.approval_set", mesh=mesh.mesh, actor=mesh.creator, ref=mesh.mesh, body={"required": True})
    for member in rows.members:
        unit.save_member(member)
        body = {"name": member.name, "role": member.role.value}
        unit.append("member.joined", mesh=member.mesh, actor=member.node, ref=member.node, body=body)
    for access in rows.access:
        unit.save_access(access)
        verdicts = {"read": access.read.value, "write": access.write.value, "lock": access.lock.value}
        unit.append("mesh.access_set", mesh=access.mesh, ref=access.node, body=verdicts)
    for topic in rows.topics:
        unit.save_topic(topic.mesh, topic.topic, topic.creator)
        unit.append("topic.created", mesh=topic.mesh, actor=topic.creator, ref=topic.topic)
    for name, node, pattern in rows.subscriptions:
        unit.save_subscription(name, node, pattern)
        unit.append("member.subscribed", mesh=name, actor=node, ref=node, body={"pattern": pattern})
    for name, node, blocked in rows.blocks:
        unit.save_block(name, node, blocked)
        unit.append("member.blocked", mesh=name, actor=node, ref=blocked)
    for held in rows.held_keys:
        unit.save_held_key(held)
        unit.append("member.held", mesh=held.mesh, ref=held.node, body={"former": held.former})
