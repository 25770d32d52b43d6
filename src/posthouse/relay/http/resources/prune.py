"""/v1/admin/prune: delete the prefix of the journal that the archive has, after comparing digests."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.model.limits import INT64_MAX
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Route
from posthouse.relay.ops.prune import ArchivedRange

Seq = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class PruneRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A range of the journal; `digest` is over its records' canonical lines, `contents` over its events.

    Both are BLAKE3. `contents` covers the events without an expiration as they are served, a line each; without it only
    records go and events keep their content.
    """

    epoch: str
    from_seq: Seq
    to_seq: Seq
    digest: Digest
    contents: Digest | None = None


class PruneAnswer(msgspec.Struct):
    """How many records are gone, how many events lost their content, and the oldest seq there is now."""

    pruned: int
    emptied: int
    oldest_seq: int


async def prune(call: Call) -> Answer:
    """Compute the digests again and delete the range if they are those given, else refuse."""
    given = await call.body(PruneRequest)
    archived = ArchivedRange(given.epoch, given.from_seq, given.to_seq, given.digest, given.contents)
    pruned, oldest_seq = await call.edge.core.prune(call.node, archived)
    return json_answer(PruneAnswer(pruned.records, pruned.emptied, oldest_seq))


ROUTES = (
    Route(
        "POST",
        "/v1/admin/prune",
        prune,
        "Delete an archived prefix of the journal (administrators)",
        bodies=(PruneRequest,),
        answers={200: PruneAnswer},
    ),
)
