"""Stored events over HTTP: query, count, read by id, coordinate or pointer; and pruning them after they were archived.

Every event is compared with the request and verified before the caller sees it: otherwise a relay could answer with
another event that is properly signed. Pruning sends the digests of the records as read back from the lake; the relay
computes them again before it deletes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from posthouse.client.transport import Parameters, Requests
from posthouse.client.trust.signing import verify_events
from posthouse.model.api import ArchivedRange, JournalPage, Pruned
from posthouse.model.errors import error
from posthouse.model.event import Coordinate, Event, coordinate_of, is_replacing
from posthouse.model.filters import filter_from_json


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    pubkey: str
    created_at_ns: int
    kind: int
    tags: tuple[tuple[str, ...], ...]
    content: str
    sig: str
    seq: int

    def stored(self) -> Stored:
        event = Event(
            id=self.id,
            pubkey=self.pubkey,
            created_at_ns=self.created_at_ns,
            kind=self.kind,
            tags=self.tags,
            content=self.content,
            sig=self.sig,
        )
        return Stored(event, self.seq)


class _Count(msgspec.Struct):
    count: int


class _PageBody(msgspec.Struct, forbid_unknown_fields=True):
    events: list[_Body]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """An event and its position in the relay's journal."""

    event: Event
    seq: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page of events and the cursor of the next page; None on the last page."""

    events: Sequence[Stored]
    cursor: str | None


Matches = Callable[[Event], bool]


class StoredEvents:
    """Reads the stored events of a relay."""

    def __init__(self, requests: Requests, *, is_verifying: bool) -> None:
        self._requests = requests
        self._is_verifying = is_verifying

    async def query(
        self,
        filter: Mapping[str, Any],  # noqa: A002 - the domain's word
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] = "asc",
        cursor: str | None = None,
    ) -> Page:
        """Return a page of events that match a filter, in commit order."""
        matcher = filter_from_json(dict(filter))
        parameters = query_parameters(filter) | {"limit": limit, "order": order, "cursor": cursor}
        return await self._page("/v1/events", parameters, matcher.matches)

    async def count(self, filter: Mapping[str, Any]) -> int:  # noqa: A002 - the domain's word
        """Return how many stored events match a filter."""
        filter_from_json(dict(filter))
        return (await self._requests.get_as(_Count, "/v1/events/count", query_parameters(filter))).count

    async def get(self, event_id: str) -> Stored:
        """Return the event with an id."""
        return await self._stored(f"/v1/events/{quote(event_id, safe='')}", {}, lambda event: event.id == event_id)

    async def address(self, coordinate: Coordinate) -> Stored:
        """Return the latest event of a coordinate."""
        return await self._stored(_address_path(coordinate), {"d": coordinate.d}, _is_at(coordinate))

    async def history(self, coordinate: Coordinate, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the events of a coordinate, replaced ones included, in commit order."""
        parameters = {"d": coordinate.d, "limit": limit, "cursor": cursor}
        return await self._page(_address_path(coordinate) + "/history", parameters, _is_at(coordinate))

    async def pointer(self, resource: str, mesh: str) -> Stored:
        """Return the newest event under the fence of a resource, over all authors."""

        def matches(event: Event) -> bool:
            fence = event.tag("fence")
            return fence is not None and fence[1:2] == (resource,) and event.mesh == mesh

        return await self._stored("/v1/pointers", {"resource": resource, "mesh": mesh}, matches)

    async def _stored(self, path: str, parameters: Parameters, matches: Matches) -> Stored:
        stored = (await self._requests.get_as(_Body, path, parameters)).stored()
        await self._check([stored], matches)
        return stored

    async def _page(self, path: str, parameters: Parameters, matches: Matches) -> Page:
        body = await self._requests.get_as(_PageBody, path, parameters)
        page = Page([each.stored() for each in body.events], body.cursor)
        await self._check(page.events, matches)
        return page

    async def _check(self, events: Sequence[Stored], matches: Matches) -> None:
        for stored in events:
            if not matches(stored.event):
                reason = f"event {stored.event.id} does not match the request"
                raise error("answer_invalid", relay=self._requests.origin, reason=reason)
        if self._is_verifying:
            await verify_events([stored.event for stored in events])


def query_parameters(filter: Mapping[str, Any]) -> dict[str, str | int | None]:  # noqa: A002 - the domain's word
    """Return a filter as query parameters; the values of a list are joined by commas."""
    parameters: dict[str, str | int | None] = {}
    for name, value in filter.items():
        if not isinstance(value, list | tuple | set | frozenset):
            parameters[name] = value
            continue
        if any("," in str(each) for each in value):
            reason = "HTTP cannot carry a value with a comma; subscribe with this filter instead"
            raise error("filter_invalid", field=name, reason=reason)
        parameters[name] = ",".join(str(each) for each in value)
    return parameters


def _address_path(coordinate: Coordinate) -> str:
    if not is_replacing(coordinate.kind):
        raise error(
            "coordinate_invalid", coordinate=str(coordinate), reason="its kind is not replaceable or addressable"
        )
    return f"/v1/events/address/{coordinate.kind}/{coordinate.pubkey}"


def _is_at(coordinate: Coordinate) -> Matches:
    def matches(event: Event) -> bool:
        return is_replacing(event.kind) and coordinate_of(event) == coordinate

    return matches


class _Record(msgspec.Struct):
    seq: int


class _Journal(msgspec.Struct):
    records: list[_Record]


class Archive:
    """What an administrator reads of a relay, and how an archive prunes it."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def oldest_seq(self) -> int | None:
        """Return the seq of the oldest journal record, or None if there is none."""
        records = (await self._requests.get_as(_Journal, "/v1/journal", {"limit": 1})).records
        return records[0].seq if records else None

    async def newest_records(
        self, *, types: Sequence[str] = (), before: str | None = None, limit: int | None = None
    ) -> JournalPage:
        """Return journal records newest first, of some types or of all; the cursor of a page goes on before it."""
        parameters = {"order": "desc", "types": ",".join(types) or None, "before": before, "limit": limit}
        return await self._requests.get_as(JournalPage, "/v1/journal", parameters)

    async def metrics(self) -> str:
        """Return the metrics in the Prometheus text format."""
        return (await self._requests.get("/metrics")).decode()

    async def prune(self, archived: ArchivedRange) -> Pruned:
        """Delete an archived range; the relay first computes the digests again and refuses if they differ."""
        return await self._requests.post_as(Pruned, "/v1/admin/prune", archived)
