"""Requests to prune, with digests as an archive computes them over HTTP or from the store."""

from __future__ import annotations

from typing import Any

from posthouse.journal.digest import content_digest, digest_contents, digest_records
from posthouse.relay.store.protocol import RelayStore
from tests.relay.edge import Edge, Reply


async def range_of(store: RelayStore, from_seq: int, to_seq: int) -> dict[str, Any]:
    """Return the body of a request to prune."""
    records = await store.journal(from_seq - 1, to_seq - from_seq + 1)
    columns, rows = await store.feed("events", from_seq - 1, to_seq - from_seq + 1)
    events = [dict(zip(columns, row, strict=True)) for row in rows]
    lasting = [each for each in events if each["seq"] <= to_seq and each["expiration_s"] is None]
    removed = await removed_digests(store)
    digests = [content_digest(each["event"].encode()) if each["event"] else removed[each["seq"]] for each in lasting]
    return {
        "epoch": store.epoch,
        "from_seq": from_seq,
        "to_seq": to_seq,
        "digest": digest_records(records),
        "contents": digest_contents(digests),
        "contents_version": 2,
    }


async def removed_digests(store: RelayStore) -> dict[int, bytes]:
    """Return the digests of content that was removed before it was archived, as the journal says."""
    records = await store.journal(0, 100_000, {"content.erased", "content.swept"})
    bodies = [record.decoded_body() for record in records]
    named = [pair for body in bodies for pair in zip(body["seqs"], body["digests"], strict=True)]
    return {seq: bytes.fromhex(digest) for seq, digest in named if digest is not None}


async def prune_through(edge: Edge, to_seq: int | None = None) -> Reply:
    """Ask a relay to prune everything up to a seq, or everything there is."""
    store = edge.server.context.engine.store
    extent = await store.extent()
    body = await range_of(store, extent.pruned_through + 1, to_seq or extent.head)
    return await edge.post("/v1/admin/prune", body, await edge.token(edge.admin))
