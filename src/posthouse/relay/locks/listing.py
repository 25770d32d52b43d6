"""Lists of locks, read beside the writer: one committed state, and what is left of each lease by the clock of now."""

from __future__ import annotations

import base64
import binascii

import msgspec

from posthouse.model import lease
from posthouse.model.clock import Clock
from posthouse.model.errors import error
from posthouse.relay.locks.answers import ListedLock, LockPage
from posthouse.relay.locks.arguments import ListLocks
from posthouse.relay.locks.rows import LockEntry
from posthouse.relay.meshes.registry import Meshes
from posthouse.relay.meshes.rights import Right
from posthouse.relay.store.interface import RelayStore

_CURSOR = msgspec.json.Decoder(tuple[str, str])


async def list_locks(store: RelayStore, meshes: Meshes, clock: Clock, node: str, wanted: ListLocks) -> LockPage:
    """Return the locks of one mesh, or of all that a node may read, in the order of mesh and resource."""
    if wanted.mesh is None:
        scope = meshes.readable(node)
    else:
        meshes.demand(node, wanted.mesh, Right.READ)
        scope = frozenset({wanted.mesh})
    after = ("", "") if wanted.cursor is None else _read_cursor(wanted.cursor)
    entries = await store.locks(scope, after, wanted.limit)
    now_ns = clock.boot_ns()
    last = entries[-1] if len(entries) == wanted.limit else None
    return LockPage([_listed(entry, now_ns) for entry in entries], None if last is None else _cursor(last))


def _listed(entry: LockEntry, now_ns: int) -> ListedLock:
    view = lease.inspect(entry.row, entry.row.resource, now_ns)
    return ListedLock(entry.mesh, view.resource, view.held, view.owner, view.token, view.remaining_ms)


def _cursor(entry: LockEntry) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((entry.mesh, entry.row.resource))).decode()


def _read_cursor(cursor: str) -> tuple[str, str]:
    try:
        return _CURSOR.decode(base64.urlsafe_b64decode(cursor.encode()))
    except (binascii.Error, msgspec.DecodeError, ValueError) as fault:
        raise error("cursor_invalid", cursor=cursor[:80]) from fault
