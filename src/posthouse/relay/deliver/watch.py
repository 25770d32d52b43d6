"""Which figure about queues is read from where."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from posthouse.model.limits import SECOND_NS

if TYPE_CHECKING:
    from posthouse.relay.edge import Edge


def watch_queues(edge: Edge) -> None:
    """Let the metrics of queues be read when they are shown."""
    meters, core = edge.meters, edge.core
    mailboxes, attendance = core.mailboxes, core.attendance
    meters.watch("posthouse_relay_mailboxes", lambda: mailboxes.statistics()["open"])
    meters.watch("posthouse_relay_messages_in_flight", lambda: mailboxes.statistics()["in_flight"])
    meters.watch("posthouse_relay_queued_messages", lambda: attendance.totals.open_rows)
    meters.watch("posthouse_relay_parked_messages", lambda: attendance.totals.parked_rows)
    meters.watch("posthouse_relay_waiting_confirmation_ids", lambda: attendance.totals.confirmation_ids)
    meters.watch("posthouse_relay_queue_oldest_seconds", partial(_oldest_s, edge))
    mailboxes.on_flushed = partial(meters.observe, "posthouse_relay_flush_seconds")
    mailboxes.on_sent = partial(_count_sent, edge)
    mailboxes.on_closed = partial(_count_closed, edge)


def _oldest_s(edge: Edge) -> float:
    oldest_ns = edge.core.attendance.totals.oldest_ns
    return 0.0 if oldest_ns is None else max(0.0, (edge.clock.wall_ns() - oldest_ns) / SECOND_NS)


def _count_sent(edge: Edge, count: int, was_stored: bool) -> None:
    edge.meters.count("posthouse_relay_deliveries_total", "queue" if was_stored else "tail", by=count)


def _count_closed(edge: Edge, state: str, count: int) -> None:
    edge.meters.count("posthouse_relay_deliveries_closed_total", state, by=count)
