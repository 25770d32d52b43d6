"""Reading stored events over HTTP: by query, id and coordinate; verified before they are handed out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import quote

from posthouse.client.requests import Requests
from posthouse.client.stored import Page, Stored, read_page, read_stored
from posthouse.client.verification import verify_events
from posthouse.model.coordinate import Coordinate, coordinate_of
from posthouse.model.errors import error
from posthouse.model.event import Event
from posthouse.model.filters import filter_from_json
from posthouse.model.kinds import is_replacing


class Events:
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
