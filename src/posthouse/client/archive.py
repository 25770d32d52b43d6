"""What the archive asks of a relay, over HTTP: how far its journal goes back, and to prune what the lake holds."""

from __future__ import annotations

import msgspec

from posthouse.client.requests import Requests
from posthouse.model.errors import error


class ArchivedRange(msgspec.Struct, frozen=True):
    """Records that the lake holds, with the digests of what was read back from it."""

    epoch: str
    from_seq: int
    to_seq: int
    #: over the records' canonical lines
    digest: str
    #: over the events without an expiration, as they are served
    contents: str


class Pruned(msgspec.Struct, frozen=True):
    """What the relay took away, and the oldest seq it has now."""

    pruned: int
    emptied: int
    oldest_seq: int


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
