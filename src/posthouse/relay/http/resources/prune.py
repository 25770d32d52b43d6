"""/v1/admin/prune: delete the prefix of the journal that the archive has, after comparing digests."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.model.limits import INT64_MAX
from posthouse.relay.http.answer import Answer, json_answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Route

Seq = Annotated[int, Meta(ge=1, le=INT64_MAX)]


class PruneRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A range of the journal, and the BLAKE3 over its records' canonical lines."""

    epoch: str
    from_seq: Seq
    to_seq: Seq
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Pruned(msgspec.Struct):
    """How many records are gone."""

    pruned: int


async def prune(call: Call) -> Answer:
    """Compute the digest again and delete the range if it is the one given, else refuse."""
    given = await call.body(PruneRequest)
    pruned = await call.edge.core.prune(
        call.node, epoch=given.epoch, from_seq=given.from_seq, to_seq=given.to_seq, digest=given.digest
    )
    return json_answer(Pruned(pruned))


ROUTES = (
    Route(
        "POST",
        "/v1/admin/prune",
        prune,
        "Delete an archived prefix of the journal (administrators)",
        bodies=(PruneRequest,),
        answers={200: Pruned},
    ),
)
