"""What a webhook sends next: committed events and journal records after its cursor, in commit order.

Events are selected by the filters of the webhook within what its creator may read; records by their type, of the
webhook's mesh only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from posthouse.model.event import MESSAGE, Event
from posthouse.model.filters import Filter, filter_from_json
from posthouse.relay.store.event_rows import Query, Scope
from posthouse.relay.store.protocol import RelayStore
from posthouse.relay.webhooks.payloads import Item
from posthouse.relay.wire.webhook_rows import WebhookRow

_PAGE = 50
_event = msgspec.json.Decoder(Event).decode


class Selection(NamedTuple):
    """The next items of a webhook: all matches up to a seq."""

    items: list[Item]
    through_seq: int
    #: True if there are no more now
    is_end: bool


async def select_items(store: RelayStore, row: WebhookRow, after_seq: int) -> Selection:
    """Return the events and records that a webhook has to send after a seq."""
    through_seq, is_end = (await store.extent()).head, True
    items: list[Item] = []
    filters = _filters(row)
    if filters:
        page = await store.query(Query(filters, _scope(row), after_seq, _PAGE))
        through_seq, is_end = page.through_seq, page.is_end
        items = [Item(each.seq, row.mesh, each.raw) for each in page.events if _is_wanted(row, each.raw)]
    types: list[str] = msgspec.json.decode(row.record_types)
    if types:
        records = await store.journal(after_seq, _PAGE, types)
        if len(records) == _PAGE and records[-1].seq < through_seq:
            through_seq, is_end = records[-1].seq, False
        items += [Item(each.seq, row.mesh, record=each) for each in records if each.mesh == row.mesh]
    items = [item for item in sorted(items, key=lambda item: item.seq) if item.seq <= through_seq]
    return Selection(items, max(through_seq, after_seq), is_end)


def _scope(row: WebhookRow) -> Scope:
    return Scope(row.creator, frozenset({row.mesh}))


def _filters(row: WebhookRow) -> list[Filter]:
    """Return the filters of a webhook, within its mesh."""
    given: list[dict[str, Any]] = msgspec.json.decode(row.filters)
    if row.is_inbox:
        given.append({"kinds": [MESSAGE], "#p": [row.creator]})
    return [replace(filter_from_json(each), mesh=row.mesh) for each in given]


def _is_wanted(row: WebhookRow, raw: bytes) -> bool:
    """Return False for a message to an agent, if only the inbox filter can have selected it."""
    if not row.is_inbox or row.filters != "[]":
        return True
    return not _event(raw).value("to")


async def seq_at(store: RelayStore, at_ns: int) -> int:
    """Return the seq of the last journal record before a time, by bisection: times of records never go back."""
    extent = await store.extent()
    low, high = extent.pruned_through, extent.head
    while low < high:
        middle = (low + high + 1) // 2
        found = await store.journal(middle - 1, 1)
        if found and found[0].seq <= high and found[0].at_ns < at_ns:
            low = found[0].seq
        else:
            high = middle - 1
    return low
