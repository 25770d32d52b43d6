"""The protocols of the relay's store: RelayStore, and the Unit of work inside a transaction.

Reads run outside the writer and see one committed state each; units run in submission order on the one group-commit
writer. Invariants that every store keeps and the contract suite (tests/relay/store/contract.py) checks:

- seq comes from the journal: gap-free, in commit order; either all rows of a unit exist or none;
- a result comes after its commit, in commit order; a page is in seq order and complete up to the seq it names;
- of a replaceable or addressable address the larger (created_at_ns, id) is current, whichever arrived first.

The layers above decide what may be written and which node may read; the store only keeps and finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from posthouse.journal.cursor import Extent
from posthouse.journal.digest import Record
from posthouse.model.event import Coordinate
from posthouse.model.fence_rules import FenceRule
from posthouse.model.filters import Filter
from posthouse.model.lease import LockRow, RequestRecord
from posthouse.model.lock_scope import Claim
from posthouse.model.mesh_limits import MeshLimits
from posthouse.relay.store.copies import CopyReads
from posthouse.relay.store.delivery_protocol import DeliveryReads, DeliveryUnit, KeyUnit, PinchReads, PinchUnit
from posthouse.relay.store.event_rows import (
    ContentRow,
    CurrentEvent,
    ErasedEvents,
    EventRow,
    Page,
    Pruned,
    Query,
    Released,
    Scope,
    StoredEvent,
    StoreSpace,
    SweptEvents,
    Tombstones,
    Usage,
)
from posthouse.relay.store.shared_store import SharedStore
from posthouse.relay.store.webhook_tables import WebhookReads, WebhookUnit
from posthouse.relay.wire.delivery_rows import ClosedDeliveries
from posthouse.relay.wire.lock_operations import LockEntry, LockPosition, LockRun
from posthouse.relay.wire.mesh_rows import AccessRow, InviteRow, LimitsRow, MemberRow, MeshRow, MeshRows
from posthouse.storage.handover import LoopResults

R = TypeVar("R")


class Unit(KeyUnit, Protocol):
    """One unit of work inside the writer's transaction; used on the writer's thread only, never kept."""

    has_tombstones: bool  # False only if no deletion blocks anything

    @property
    def now_ns(self) -> int:
        """Wall time of this transaction; never goes back."""
        ...

    @property
    def boot_ns(self) -> int:
        """Boot time at this moment, for leases."""
        ...

    @property
    def meshes_changed_at(self) -> int:
        """Seq of the last record of another relay that changed a mesh; a decision about rights must be newer."""
        ...

    @property
    def deliveries(self) -> DeliveryUnit:
        """Deliveries, in this transaction."""
        ...

    @property
    def pinch(self) -> PinchUnit:
        """Pinch envelopes, in this transaction."""
        ...

    @property
    def webhooks(self) -> WebhookUnit:
        """Webhooks, in this transaction."""
        ...

    def append(
        self,
        type: str,  # noqa: A002 - the journal's word
        *,
        mesh: str | None = None,
        actor: str | None = None,
        ref: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> int:
        """Append a record to the journal and return its seq."""
        ...

    def known(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the seq of each of these event ids that was accepted before, including swept events."""
        ...

    def add_events(self, rows: Sequence[EventRow]) -> list[int]:
        """Write events that are all new, each with its one journal record, and return their seqs in order."""
        ...

    def find_current(self, addresses: Collection[bytes]) -> dict[bytes, CurrentEvent]:
        """Return the current event of each of these addresses that has one."""
        ...

    def save_mesh(self, row: MeshRow) -> None: ...

    def save_limits(self, row: LimitsRow) -> None: ...

    def clear_mesh(self, mesh: str) -> None:
        """Delete everything that belongs to a mesh but the mesh itself."""
        ...

    def save_member(self, row: MemberRow) -> None: ...

    def remove_member(self, mesh: str, node: str) -> None: ...

    def save_access(self, row: AccessRow) -> None: ...

    def remove_access(self, mesh: str, node: str) -> None: ...

    def save_fence_rule(self, mesh: str, rule: FenceRule) -> None: ...

    def remove_fence_rule(self, mesh: str, kind: int, d_prefix: str) -> None: ...

    def save_topic(self, mesh: str, topic: str, creator: str) -> None: ...

    def remove_topic(self, mesh: str, topic: str) -> None: ...

    def save_subscription(self, mesh: str, node: str, pattern: str) -> None: ...

    def remove_subscription(self, mesh: str, node: str, pattern: str) -> None: ...

    def save_block(self, mesh: str, node: str, blocked: str) -> None: ...

    def remove_block(self, mesh: str, node: str, blocked: str) -> None: ...

    def save_invite(self, row: InviteRow) -> None: ...

    def find_invite(self, code_hash: bytes) -> InviteRow | None: ...

    def list_invites(self, mesh: str, now_ns: int) -> list[InviteRow]:
        """Return the invites of a mesh that can be used now, oldest first."""
        ...

    def revoke_invite(self, invite_id: str) -> None: ...

    def use_invite(self, invite_id: str, node: str) -> None:
        """Record that a node used an invite, and take one use from it."""
        ...

    def has_used_invite(self, invite_id: str, node: str) -> bool: ...

    def on_rollback(self, undo: Callable[[], None]) -> None:
        """Call `undo`, which reverts the unit's changes in memory, if this unit's rows are rolled back."""
        ...

    def find_overlaps(self, mesh: str, claim: Claim, now_ns: int) -> list[LockRow]:
        """Return up to OVERLAPS_MAX unreleased leases, expired or active, that overlap a claim.

        For a shared claim active shared leases of other holders are left out: they may be many, and none conflicts.
        """
        ...

    def find_own_overlap(self, mesh: str, claim: Claim, now_ns: int) -> LockRow | None:
        """Return an active lease of the same holder that overlaps a claim."""
        ...

    def find_leases(
        self, mesh: str, resource: str, owner: str | None = None, token: int | None = None
    ) -> list[LockRow]:
        """Return the leases of one name, or its last one: all of an owner, all of a token, or up to OVERLAPS_MAX."""
        ...

    def find_covering(self, mesh: str, resource: str, *, only_exclusive: bool = False) -> list[LockRow]:
        """Return the leases of one name, as find_leases does, and the unreleased trees above it."""
        ...

    def add_lease(self, mesh: str, row: LockRow) -> None:
        """Save the lease of a new grant; the last lease of a free name makes room for it."""
        ...

    def extend_lease(self, mesh: str, row: LockRow) -> None: ...

    def end_lease(self, mesh: str, row: LockRow) -> None:
        """Release a lease; its row stays only if the name has no other lease."""
        ...

    def find_lock_request(
        self, mesh: str, resource: str, owner: str, session: str, request_id: str
    ) -> RequestRecord | None: ...

    def save_lock_request(self, mesh: str, resource: str, owner: str, session: str, record: RequestRecord) -> None:
        """Keep the grant of a request id; grants older than a day may be deleted."""
        ...

    def find_lock_run(self) -> LockRun | None: ...

    def begin_lock_run(self, run: LockRun, over_before_ns: int, void_token: int) -> int:
        """Save the run and apply lease.reopen to every lock; return how many leases got their full length again."""
        ...

    def last_token(self) -> int:
        """Return the counter of fencing tokens: no token above it was granted."""
        ...

    def next_token(self) -> int:
        """Take the next fencing token; each grant of any lock takes one."""
        ...

    def raise_token_counter(self, token: int) -> None:
        """Raise the counter to `token`, unless it is there already."""
        ...

    def find_fence_write(self, mesh: str, resource: str, address: bytes) -> int | None:
        """Return the token of the last fenced write of a coordinate under a resource."""
        ...

    def save_fence_write(self, mesh: str, resource: str, address: bytes, token: int) -> None: ...

    def sweep_expired(self, now_ns: int, limit: int) -> int:
        """Delete the content of up to `limit` events that have expired at a time, and return how many.

        Their ids stay known. `now_ns` is read from the clock, because the journal's time may be ahead of it.
        """
        ...

    def find_contents(self, ids: Sequence[str]) -> list[ContentRow]:
        """Return the events with these ids, those without content included."""
        ...

    def find_versions(self, address: bytes, through_ns: int, limit: int) -> list[ContentRow]:
        """Return the newest events of an address that were created up to a time and are not erased."""
        ...

    def find_tombstones(self, ids: Sequence[str], addresses: Collection[bytes]) -> Tombstones:
        """Return what deletions block among events with these ids and addresses."""
        ...

    def block_ids(self, ids: Sequence[str], author: str, created_at_ns: int) -> None:
        """Block events of an author that are not known yet; the time is that of its deletion."""
        ...

    def delete_address(self, address: bytes, through_ns: int, *, is_pending: bool) -> None:
        """Block an address up to a time; `is_pending` says that `finish_deletions` has versions to erase."""
        ...

    def erase(self, rows: Iterable[ContentRow], actor: str, reason: str) -> list[ClosedDeliveries]:
        """Erase events, end their deliveries as purged, and record both; return the deliveries that ended."""
        ...

    def mesh_usage(self, mesh: str) -> Usage:
        """Return what a mesh has stored."""
        ...

    def drop_oldest(self, mesh: str, excess: Usage) -> Usage:
        """Remove the oldest events that a mesh no longer needs, if that makes enough room; return what was freed."""
        ...

    def sweep_mesh(self, mesh: str, limits: MeshLimits, now_ns: int, after_seq: int, limit: int) -> SweptEvents:
        """Apply limits of age and versions to the next `limit` events of a mesh."""
        ...

    def begin_mesh_erasure(self, mesh: str, actor: str) -> None:
        """Let `erase_mesh_step` erase a mesh that was deleted."""
        ...

    def erase_mesh_step(self, limit: int) -> ErasedEvents | None:
        """Erase a part of a deleted mesh; None if no mesh is left to erase."""
        ...

    def release_pages(self, limit: int) -> int:
        """Give up to `limit` free pages back to the file system; return how many are left, 0 if the store has none."""
        ...

    def forget_ids(self, after_seq: int, before_ns: int, limit: int) -> int | None:
        """Forget removed events that were created before a time; return where to continue, None at the end."""
        ...

    def finish_deletions(self, limit: int) -> int:
        """Erase up to `limit` versions of a deleted address that has more than a deletion erases; return how many."""
        ...

    def snapshot_journal(self, through_seq: int) -> int:
        """Append the snapshot from which replay starts once the records up to `through_seq` are deleted."""
        ...

    def prune(self, through_seq: int, snapshot_seq: int, horizon_ns: int | None) -> Pruned:
        """Delete the records up to `through_seq`, and the archived content of their events.

        A message keeps its content until every delivery ended before `horizon_ns`. None: all events keep theirs.
        """
        ...

    def release_kept(self, after_seq: int, horizon_ns: int, limit: int) -> Released:
        """Delete the content of events after a seq that pruning had to keep and that nothing needs now."""
        ...

    def reindex(self) -> None:
        """Rebuild all rows that are derived from events."""
        ...


class LockStore(Protocol):
    """The part of a store that locks need."""

    @property
    def epoch(self) -> str:
        """The name of this store's history."""
        ...

    def submit(self, work: Callable[[Unit], R], *, size: int = 0) -> asyncio.Future[R]:
        """Queue a unit at once, in call order; its future is done after the commit.

        Raises store_busy when too much waits. Cancelling the future does not undo the work.
        """
        ...

    def submit_with_callback(
        self,
        work: Callable[[Unit], Any],
        on_done: Callable[[Any, BaseException | None], None],
        *,
        size: int = 0,
        is_short: bool = False,
    ) -> None:
        """Queue a unit at once as `submit` does; `on_done` gets its result, or its failure, after the commit.

        `is_short` says that the unit writes a few rows for one caller: alone, it may commit on the loop's thread.
        """
        ...

    async def locks(self, meshes: frozenset[str] | None, after: LockPosition, limit: int) -> list[LockEntry]:
        """Return the locks of these meshes (None: of all) that follow `after`, by mesh, resource and holder."""
        ...


class RelayStore(LockStore, CopyReads, Protocol):
    """A store of events, journal and meshes."""

    def loop_results(self) -> LoopResults:
        """Return the hand-over of results, which has the commit time of the result that a callback gets now."""
        ...

    @property
    def state(self) -> str:
        """`open`, `full` or `locked` (read-only until a commit succeeds), `damaged`, `failed` or `closed`."""
        ...

    @property
    def deliveries(self) -> DeliveryReads:
        """Deliveries, as committed."""
        ...

    @property
    def pinch(self) -> PinchReads:
        """Reads of the sessions of Pinch addresses, as committed."""
        ...

    @property
    def webhooks(self) -> WebhookReads:
        """Webhooks, as committed."""
        ...

    @property
    def shared(self) -> SharedStore | None:
        """What the relays of this store share; None if the store is a file, which only one relay uses."""
        ...

    async def extent(self) -> Extent:
        """Return epoch, horizon and head."""
        ...

    async def known(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the seq of each of these event ids that was accepted before."""
        ...

    async def query(self, query: Query) -> Page:
        """Return a page; it may have fewer than `limit` events before the end if much had to be read."""
        ...

    async def count(self, filters: Sequence[Filter], scope: Scope) -> int:
        """Return how many stored events match one of the filters."""
        ...

    async def event(self, event_id: str, scope: Scope) -> StoredEvent | None:
        """Return one event, or None if there is none that the reader may see."""
        ...

    async def current(self, coordinate: Coordinate, scope: Scope) -> StoredEvent | None:
        """Return the latest event of a coordinate."""
        ...

    async def pointer(self, mesh: str, resource: str, scope: Scope) -> StoredEvent | None:
        """Return the newest event under the fence of a resource, by token and seq, over all authors."""
        ...

    async def history(self, coordinate: Coordinate, query: Query) -> Page:
        """Return all versions of a coordinate; the filters of the query are ignored."""
        ...

    async def journal(self, after_seq: int, limit: int, types: Collection[str] | None = None) -> list[Record]:
        """Return records after a seq, oldest first."""
        ...

    async def newest_journal(
        self, after_seq: int, through_seq: int, limit: int, types: Collection[str] | None = None
    ) -> list[Record]:
        """Return records of a range, newest first."""
        ...

    async def contents(self, after_seq: int, through_seq: int) -> list[tuple[bytes | None, bytes | None]]:
        """Return JSON, or the digest of lost content, of the events in a range that do not expire, in seq order."""
        ...

    async def feed(self, name: str, after_seq: int, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the column names and the rows of a feed view after a seq."""
        ...

    async def space(self) -> StoreSpace:
        """Return how large the store is, and how much of it is free."""
        ...

    async def usage(self) -> dict[str, Usage]:
        """Return what each mesh has stored."""
        ...

    async def mesh_rows(self) -> MeshRows:
        """Return all meshes with everything that belongs to them."""
        ...

    async def last_token(self) -> int:
        """Return the counter of fencing tokens: no token above it was granted."""
        ...

    def statistics(self) -> dict[str, Any]:
        """Return the counters of the store."""
        ...

    def close(self) -> None:
        """Commit waiting units and release everything; blocks."""
        ...
