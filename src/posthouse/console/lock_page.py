"""The page Locks: holders and leases, waiters, the history of locks, and reserved paths of this host.

Locks are the relay's, reservations the daemon's. Only admins break a lock; the history comes from the relay's journal,
which only admins of the relay may read.
"""

from __future__ import annotations

from typing import Any

from posthouse.console.context import VIA, ConsoleCall
from posthouse.console.upstream import Found, attempt
from posthouse.http.response import HttpResponse
from posthouse.model.api import JournalPage
from posthouse.model.clock import format_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import MILLISECOND_NS

PAGE = 100
_HISTORY = 40
HISTORY_TYPES = ("lock.acquired", "lock.released", "lock.expired", "lock.broken", "lock.taken_over")


async def show_locks(call: ConsoleCall) -> HttpResponse:
    """Show locks, their history, and reservations."""
    upstream = call.upstream
    locks = await attempt(
        upstream.relay.locks.list(mesh=upstream.mesh, limit=PAGE, cursor=call.parameter("cursor") or None)
    )
    reservations = await attempt(upstream.daemon.reservations())
    is_admin = await upstream.is_admin()
    history: Found[JournalPage] = await _history(call) if is_admin else Found(None)
    now_ns = call.context.clock.wall_ns()
    listed = [] if locks.value is None else locks.value.locks
    return call.page(
        "locks.html",
        mesh=upstream.mesh,
        is_admin=is_admin,
        held=[_with_end(each, now_ns) for each in listed if each.held],
        free=[each for each in listed if not each.held],
        next=None if locks.value is None else locks.value.cursor,
        history=_lines(history),
        has_history=history.value is not None,
        reservations=reservations.or_else([]),
        names=await upstream.names(),
        failures=_failures(locks.failure, reservations.failure),
    )


def _failures(*failures: PosthouseError | None) -> list[PosthouseError]:
    return [each for each in failures if each is not None]


def _with_end(lock: Any, now_ns: int) -> dict[str, Any]:
    """Return a held lock with the time at which its lease ends."""
    return {"lock": lock, "ends_at": format_utc(now_ns + lock.remaining_ms * MILLISECOND_NS)}


async def _history(call: ConsoleCall) -> Found[JournalPage]:
    return await attempt(call.upstream.relay.archive.newest_records(types=HISTORY_TYPES, limit=_HISTORY))


def _lines(history: Found[JournalPage]) -> list[dict[str, Any]]:
    """Return the journal records of the history as values for the template."""
    if history.value is None:
        return []
    return [
        {
            "at_ns": record.at_ns,
            "what": record.type.removeprefix("lock.").replace("_", " "),
            "resource": record.ref,
            "mesh": record.mesh,
            "owner": record.body.get("owner"),
            "session": record.body.get("session", ""),
            "actor": record.actor,
            "via": record.body.get("via"),
        }
        for record in history.value.records
    ]


async def break_lock(call: ConsoleCall) -> HttpResponse:
    """End the lease of a lock, or all leases under its name."""
    form = await call.form()
    resource, token = form.one("resource"), form.optional("token")
    upstream = call.upstream
    broken = await upstream.relay.locks.break_lock(
        resource, token=int(token) if token.isdecimal() and int(token) else None, mesh=upstream.mesh, via=VIA
    )
    return call.notice(f"The lease of {broken.resource} was ended.")


async def release_reservation(call: ConsoleCall) -> HttpResponse:
    """Release a reserved path, whichever agent holds it."""
    path = (await call.form()).one("path")
    released = await call.upstream.daemon.release(path, is_forced=True, via=VIA)
    return call.notice(f"{path} was released." if released else f"{path} was no longer reserved.")
