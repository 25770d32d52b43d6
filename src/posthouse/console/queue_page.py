"""The page Queues: messages that wait at the relay and in this host's outbox, dead letters, requeue and purge.

Admins see every queue of the mesh, others their own. The page never shows the content of a message. Actions work on
the ticked rows: a bulk action is one request per queue, and each row succeeds or fails on its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable

from posthouse.client import Queue
from posthouse.console.context import VIA, ConsoleCall, Form
from posthouse.console.upstream import Found, attempt
from posthouse.http.response import HttpResponse
from posthouse.model.errors import PosthouseError, error
from posthouse.model.message_api import QueueRows

PAGE = 50
QUEUES_MAX = 1_000  # queues that are read and sorted; for a mesh with more, `posthouse queue` is the better tool
_DIGITS_MAX = 9  # of the parameter `skip`
_STATES = ("parked", "open", "dead", "rejected", "queued", "sent")
_OUTBOX_STATES = ("dead", "pending", "inflight", "done", "aborted")


async def show_queues(call: ConsoleCall) -> HttpResponse:
    """Show queues, the messages in one state, and the outbox."""
    upstream = call.upstream
    is_admin = await upstream.is_admin()
    state = _choice(call.parameter("state"), _STATES)
    status = _choice(call.parameter("status"), _OUTBOX_STATES)
    node = call.parameter("node") or None
    queues: Found[list[Queue]] = Found([])
    if is_admin:
        queues = await attempt(upstream.relay.queues.all(upstream.mesh, limit=QUEUES_MAX))
    rows = await _rows(call, node if is_admin else upstream.node, state)
    outbox = await attempt(upstream.daemon.outbox(status=status, before=call.parameter("before") or None, limit=PAGE))
    page = outbox.value
    busiest = sorted(queues.or_else([]), key=lambda each: (-each.parked, -each.depth))
    skip = _skipped(call.parameter("skip"), len(busiest))
    failures = {each.code: each for each in (queues.failure, rows.failure, outbox.failure) if each is not None}
    return call.page(
        "queues.html",
        is_admin=is_admin,
        mesh=upstream.mesh,
        queues=busiest[skip : skip + PAGE],
        queues_max=QUEUES_MAX if len(busiest) == QUEUES_MAX else None,
        queues_next=skip + PAGE if len(busiest) > skip + PAGE else None,
        rows=[] if rows.value is None else rows.value.rows,
        rows_next=None if rows.value is None else rows.value.next,
        outbox=page or [],
        outbox_next=None if page is None else page.next,
        states=_STATES,
        statuses=_OUTBOX_STATES,
        wanted={"state": state, "status": status, "node": node or "", "after": call.parameter("after")}
        | {"before": call.parameter("before"), "skip": skip or ""},
        names=await upstream.names(),
        failures=list(failures.values()),
    )


async def _rows(call: ConsoleCall, node: str | None, state: str) -> Found[QueueRows]:
    upstream = call.upstream
    after = call.parameter("after") or None
    return await attempt(upstream.relay.queues.page(upstream.mesh, node, state=state, after=after, limit=PAGE))


def _choice(given: str, known: tuple[str, ...]) -> str:
    return given if given in known else known[0]


def _skipped(given: str, count: int) -> int:
    """Return the number of queues before the page; 0 if the page would be empty."""
    is_number = given.isascii() and given.isdecimal() and len(given) <= _DIGITS_MAX
    return int(given) if is_number and int(given) < count else 0


async def requeue_deliveries(call: ConsoleCall) -> HttpResponse:
    """Put parked messages back at the tail of their queues."""
    upstream, done, full = call.upstream, 0, 0
    for node, ids in _ticked(await call.form()).items():
        found = await upstream.relay.queues.requeue(upstream.mesh, node, ids=ids, via=VIA)
        done += len(found.requeued)
        full += len(found.no_room)
    return call.notice(f"{done} requeued." + (f" {full} had no room in their queue." if full else ""))


async def purge_deliveries(call: ConsoleCall) -> HttpResponse:
    """Remove messages from their queues for good."""
    upstream, done = call.upstream, 0
    for node, ids in _ticked(await call.form()).items():
        done += len(await upstream.relay.queues.purge(upstream.mesh, node, ids=ids, via=VIA))
    return call.notice(f"{done} purged.")


def _ticked(form: Form) -> dict[str, list[str]]:
    """Return the ticked messages by queue; the value of a checkbox is the recipient and the id of its message."""
    chosen: dict[str, list[str]] = defaultdict(list)
    for value in form.all("delivery"):
        node, _, message_id = value.rpartition(" ")
        if not node:
            raise error("console_form_invalid", reason="a checkbox names no message")
        chosen[node].append(message_id)
    if not chosen:
        raise error("console_form_invalid", reason="no message is ticked")
    return chosen


async def requeue_rows(call: ConsoleCall) -> HttpResponse:
    """Send rows of the outbox again, each as a new message."""
    daemon = call.upstream.daemon
    return await _each_row(call, "requeued", lambda row: daemon.requeue(row, via=VIA))


async def drop_rows(call: ConsoleCall) -> HttpResponse:
    """Drop rows of the outbox."""
    daemon = call.upstream.daemon
    return await _each_row(call, "dropped", lambda row: daemon.drop(row, via=VIA))


async def _each_row(call: ConsoleCall, verb: str, change: Callable[[str], Awaitable[object]]) -> HttpResponse:
    rows = (await call.form()).all("row")
    if not rows:
        raise error("console_form_invalid", reason="no row is ticked")
    failures: list[PosthouseError] = []
    for row in rows:
        found = await attempt(change(row))
        failures += [] if found.failure is None else [found.failure]
    return call.notice(f"{len(rows) - len(failures)} {verb}.", *failures)
