"""Stored events over HTTP: query, count, read by id or coordinate; and pruning them after they were archived.

Every event is compared with what was asked for and verified before the caller sees it: a relay could otherwise
answer with another event that is properly signed. Pruning sends the digests of what was read back from the lake; the
relay computes them again before it deletes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from posthouse.client.transport import Requests
from posthouse.client.trust.signing import verify_events
from posthouse.model.api import ArchivedRange, Pruned
from posthouse.model.errors import error
from posthouse.model.event import Coordinate, Event, coordinate_of
from posthouse.model.filters import filter_from_json
from posthouse.model.kinds import is_replacing


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


class _PageBody(msgspec.Struct, forbid_unknown_fields=True):
    events: list[_Body]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Stored:
    """An event and its place in the relay's journal."""

    event: Event
    seq: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of an answer, and where the next part begins; no cursor: that was all."""

    events: Sequence[Stored]
    cursor: str | None


_BODY = msgspec.json.Decoder(_Body)
_PAGE = msgspec.json.Decoder(_PageBody)


def read_stored(data: bytes, origin: str, is_wanted: Callable[[Event], bool]) -> Stored:
    """Return the event of an answer, or raise answer_invalid."""
    try:
        stored = _BODY.decode(data).stored()
    except ValueError as fault:
        raise error("answer_invalid", relay=origin, reason=str(fault)) from fault
    _expect(stored, origin, is_wanted)
    return stored


def read_page(data: bytes, origin: str, is_wanted: Callable[[Event], bool]) -> Page:
    """Return the events of an answer, or raise answer_invalid."""
    try:
        body = _PAGE.decode(data)
    except ValueError as fault:
        raise error("answer_invalid", relay=origin, reason=str(fault)) from fault
    page = Page([each.stored() for each in body.events], body.cursor)
    for stored in page.events:
        _expect(stored, origin, is_wanted)
    return page


def _expect(stored: Stored, origin: str, is_wanted: Callable[[Event], bool]) -> None:
    if not is_wanted(stored.event):
        raise error("answer_invalid", relay=origin, reason=f"event {stored.event.id} was not asked for")


class StoredEvents:
    """The stored events of a relay."""

    def __init__(self, requests: Requests, *, is_verifying: bool) -> None:
        self._requests = requests
        self._is_verifying = is_verifying

    async def query(
        self,
        wanted: Mapping[str, Any],
        *,
        limit: int | None = None,
        order: Literal["asc", "desc"] = "asc",
        cursor: str | None = None,
    ) -> Page:
        """Return a page of events that match a filter, in commit order."""
        matcher = filter_from_json(dict(wanted))
        parameters = query_parameters(wanted) | {"limit": limit, "order": order, "cursor": cursor}
        data = await self._requests.get("/v1/events", parameters)
        return await self._verified_page(read_page(data, self._requests.origin, matcher.matches))

    async def count(self, wanted: Mapping[str, Any]) -> int:
        """Return how many stored events match a filter."""
        filter_from_json(dict(wanted))
        answer = self._requests.decode(await self._requests.get("/v1/events/count", query_parameters(wanted)))
        count = answer.get("count") if isinstance(answer, dict) else None
        if not isinstance(count, int):
            raise error("answer_invalid", relay=self._requests.origin, reason="it lacks count")
        return count

    async def get(self, event_id: str) -> Stored:
        """Return one event."""
        data = await self._requests.get(f"/v1/events/{quote(event_id, safe='')}")
        return await self._verified(read_stored(data, self._requests.origin, lambda event: event.id == event_id))

    async def address(self, coordinate: Coordinate) -> Stored:
        """Return the latest event of a coordinate."""
        data = await self._requests.get(_address_path(coordinate), {"d": coordinate.d})
        return await self._verified(read_stored(data, self._requests.origin, _is_at(coordinate)))

    async def history(self, coordinate: Coordinate, *, limit: int | None = None, cursor: str | None = None) -> Page:
        """Return a page of the events of a coordinate, older ones included, in commit order."""
        parameters = {"d": coordinate.d, "limit": limit, "cursor": cursor}
        data = await self._requests.get(_address_path(coordinate) + "/history", parameters)
        return await self._verified_page(read_page(data, self._requests.origin, _is_at(coordinate)))

    async def _verified(self, stored: Stored) -> Stored:
        if self._is_verifying:
            await verify_events([stored.event])
        return stored

    async def _verified_page(self, page: Page) -> Page:
        if self._is_verifying:
            await verify_events([stored.event for stored in page.events])
        return page


def query_parameters(wanted: Mapping[str, Any]) -> dict[str, str | int | None]:
    """Return a filter as query parameters: lists with commas between their values."""
    parameters: dict[str, str | int | None] = {}
    for name, value in wanted.items():
        if not isinstance(value, list | tuple | set | frozenset):
            parameters[name] = value
            continue
        if any("," in str(each) for each in value):
            reason = "a value with a comma cannot be asked for over HTTP; subscribe with this filter instead"
            raise error("filter_invalid", field=name, reason=reason)
        parameters[name] = ",".join(str(each) for each in value)
    return parameters


def _address_path(coordinate: Coordinate) -> str:
    if not is_replacing(coordinate.kind):
        raise error(
            "coordinate_invalid", coordinate=str(coordinate), reason="its kind is not replaceable or addressable"
        )
    return f"/v1/events/address/{coordinate.kind}/{coordinate.pubkey}"


def _is_at(coordinate: Coordinate) -> Any:
    def is_wanted(event: Event) -> bool:
        return is_replacing(event.kind) and coordinate_of(event) == coordinate

    return is_wanted


class _Seq(msgspec.Struct):
    seq: int


class _Journal(msgspec.Struct):
    records: list[_Seq]


class Archive:
    """The relay as the archive sees it; for its administrators."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def oldest_seq(self) -> int | None:
        """Return the seq of the oldest record, None when there is none."""
        data = await self._requests.get("/v1/journal", {"limit": 1})
        try:
            records = msgspec.json.decode(data, type=_Journal).records
        except ValueError as fault:
            raise error("answer_invalid", relay=self._requests.origin, reason=str(fault)) from fault
        return records[0].seq if records else None

    async def prune(self, archived: ArchivedRange) -> Pruned:
        """Ask to delete a range; the relay computes the digests again first."""
        data = await self._requests.post("/v1/admin/prune", archived)
        try:
            return msgspec.json.decode(data, type=Pruned)
        except ValueError as fault:
            raise error("answer_invalid", relay=self._requests.origin, reason=str(fault)) from fault
