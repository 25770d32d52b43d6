"""Stored events over HTTP: query, count, read by id, coordinate or pointer; delete, prune, and copy them elsewhere.

Every event is compared with the request and verified before the caller sees it: otherwise a relay could answer with
another event that is properly signed. Pruning sends the digests of the records as read back from the lake; the relay
computes them again before it deletes anything.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from posthouse.client.key_chains import Keys
from posthouse.client.transport import Parameters, Requests
from posthouse.client.trust.signing import verify_events
from posthouse.model import mirror
from posthouse.model.api import (
    ArchivedRange,
    ClusterState,
    Compacted,
    Count,
    Deleted,
    DeleteRequest,
    EventPage,
    JournalPage,
    Pruned,
    StoredEventBody,
)
from posthouse.model.deletion import deletion_tags
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import MESSAGE, Coordinate, Event, Tag, coordinate_of, is_replacing
from posthouse.model.filters import filter_from_json
from posthouse.model.message import read_message


@dataclass(frozen=True, slots=True)
class Stored:
    """An event and its position in the relay's journal."""

    event: Event
    seq: int
    #: an admin revoked its key, and it was signed or accepted after the time from which the key is not trusted
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page of events and the cursor of the next page; None on the last page."""

    events: Sequence[Stored]
    cursor: str | None


Matches = Callable[[Event], bool]


class StoredEvents:
    """Reads the stored events of a relay."""

    def __init__(self, requests: Requests, keys: Keys, *, is_verifying: bool) -> None:
        self._requests = requests
        self._keys = keys
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
        return (await self._requests.get_as(Count, "/v1/events/count", query_parameters(filter))).count

    async def get(self, event_id: str) -> Stored:
        """Return the event with an id."""
        return await self._stored(f"/v1/events/{quote(event_id, safe='')}", {}, lambda event: event.id == event_id)

    async def address(self, coordinate: Coordinate) -> Stored:
        """Return the latest event of a coordinate; its author may be another key of the same owner."""

        def matches(event: Event) -> bool:
            return _is_at(coordinate._replace(pubkey=event.pubkey))(event)

        stored = await self._stored(_address_path(coordinate), {"d": coordinate.d}, matches)
        author = stored.event.pubkey
        if author != coordinate.pubkey and not await self._keys.have_same_owner(coordinate.pubkey, author):
            reason = f"{author} signed event {stored.event.id}, and {coordinate.pubkey} did not name that key"
            raise error("answer_invalid", relay=self._requests.origin, reason=reason)
        return stored

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
        stored = _stored(await self._requests.get_as(StoredEventBody, path, parameters))
        await self._check([stored], matches)
        return stored

    async def _page(self, path: str, parameters: Parameters, matches: Matches) -> Page:
        body = await self._requests.get_as(EventPage, path, parameters)
        page = Page([_stored(each) for each in body.events], body.cursor)
        await self._check(page.events, matches)
        return page

    async def _check(self, events: Sequence[Stored], matches: Matches) -> None:
        for stored in events:
            if not matches(stored.event):
                reason = f"event {stored.event.id} does not match the request"
                raise error("answer_invalid", relay=self._requests.origin, reason=reason)
        if self._is_verifying:
            await verify_events([stored.event for stored in events])


def _stored(body: StoredEventBody) -> Stored:
    return Stored(body.event, body.seq, body.suspect)


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


async def plan_deletions(
    supports: Callable[[str], bool], events: StoredEvents, ids: Sequence[str], coordinates: Sequence[str]
) -> list[list[Tag]]:
    """Return the tags of the deletions that name these events: direct messages in one for each recipient.

    Only sender and recipient see such a deletion. Raises feature_unavailable for a relay that would store the deletion
    and delete nothing.
    """
    if not supports("deletions"):
        raise error("feature_unavailable", feature="deletions")
    by_recipient: dict[str | None, list[str]] = {None: []} if coordinates else {}
    for event_id in dict.fromkeys(ids):
        by_recipient.setdefault(await _recipient_of(events, event_id), []).append(event_id)
    return [deletion_tags(named, () if to else coordinates, to) for to, named in by_recipient.items()]


async def _recipient_of(events: StoredEvents, event_id: str) -> str | None:
    """Return the recipient of a direct message, None for any other event and one that the relay does not know."""
    try:
        event = (await events.get(event_id)).event
    except PosthouseError as failure:
        if failure.code != "event_unknown":
            raise
        return None
    return read_message(event).recipient if event.kind == MESSAGE else None


class Archive:
    """Reading a relay's journal and state as an administrator, and pruning it for an archive."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def oldest_seq(self) -> int | None:
        """Return the seq of the oldest journal record, or None if there is none."""
        records = (await self._requests.get_as(JournalPage, "/v1/journal", {"limit": 1})).records
        return records[0].seq if records else None

    async def newest_records(
        self, *, types: Sequence[str] = (), before: str | None = None, limit: int | None = None
    ) -> JournalPage:
        """Return journal records newest first, of some types or of all; the cursor of a page continues before it."""
        parameters = {"order": "desc", "types": ",".join(types) or None, "before": before, "limit": limit}
        return await self._requests.get_as(JournalPage, "/v1/journal", parameters)

    async def check_ready(self) -> None:
        """Raise relay_not_ready if the relay does not accept events now; needs no authentication."""
        await self._requests.send_anonymous(dict[str, Any], "GET", "/readyz")

    async def metrics(self, token: str | None = None) -> str:
        """Return the metrics in the Prometheus text format; `token` is the relay's metrics token, if it has one."""
        return (await self._requests.get("/metrics", token=token)).decode()

    async def cluster(self) -> ClusterState:
        """Return the relays of the relay's store, and which of them leads."""
        return await self._requests.get_as(ClusterState, "/v1/cluster")

    async def prune(self, archived: ArchivedRange) -> Pruned:
        """Delete an archived range; the relay first computes the digests again and refuses if they differ."""
        return await self._requests.post_as(Pruned, "/v1/admin/prune", archived)

    async def compact(self) -> Compacted:
        """Make the relay give free space of its store back to the file system."""
        return await self._requests.post_as(Compacted, "/v1/admin/compact", {})

    async def delete(self, request: DeleteRequest) -> Deleted:
        """Delete events of any author, in as many requests as it takes; return the sums."""
        done = await self._requests.post_as(Deleted, "/v1/admin/delete", request)
        while done.through_seq is not None:
            following = msgspec.structs.replace(request, after_seq=done.through_seq)
            step = await self._requests.post_as(Deleted, "/v1/admin/delete", following)
            done = Deleted(done.matched + step.matched, done.erased + step.erased, step.head, step.through_seq)
        return done


class Copies:
    """Copies of a relay and of its meshes, over HTTP."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def read_store(self) -> AsyncGenerator[bytes]:
        """Return the pieces of a copy of the store, an SQLite database."""
        return self._requests.get_chunks("/v1/follow/copy")

    async def read_changes(self, stream: str, number: int, digest: bytes, *, head: int, wait_s: float) -> bytes:
        """Return a page of changes after the position of a copy; wait up to `wait_s` for the first change."""
        position: dict[str, str | int | None] = {"stream": stream, "number": number, "digest": digest.hex()}
        position |= {"head": head, "wait_s": str(wait_s)}
        return await self._requests.get("/v1/follow/changes", position)

    async def push(self, mesh: str, events: Sequence[bytes]) -> mirror.MirrorPushed:
        """Store events of another relay."""
        body = mirror.MirrorEvents([msgspec.Raw(event) for event in events])
        return await self._requests.post_as(mirror.MirrorPushed, f"/v1/mirror/{mesh}/push", body)

    async def read_events(
        self, mesh: str, wanted: dict[str, Any], *, after: str | None = None, wait_s: float = 0.0
    ) -> mirror.MirrorPage:
        """Return events of a mesh, of all its readers, after a cursor."""
        body = mirror.MirrorRead(wanted, after, wait_s)
        return await self._requests.post_as(mirror.MirrorPage, f"/v1/mirror/{mesh}/read", body)

    async def fetch(self, mesh: str, ids: Sequence[str]) -> mirror.MirrorFetched:
        """Return events of a mesh by their ids, and the ids of those whose content is gone."""
        return await self._requests.post_as(
            mirror.MirrorFetched, f"/v1/mirror/{mesh}/fetch", mirror.MirrorIds(list(ids))
        )

    async def compare(self, mesh: str, wanted: dict[str, Any], message: bytes) -> bytes:
        """Return the relay's answer to a message of range fingerprints."""
        body = mirror.MirrorCompare(message, wanted)
        return (await self._requests.post_as(mirror.MirrorAnswer, f"/v1/mirror/{mesh}/compare", body)).message
