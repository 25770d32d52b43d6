"""Messages for the measurements, signed before the clock runs, and queued for readers that are away."""

from __future__ import annotations

from collections.abc import Sequence

from posthouse.bench.drain.terms import BODY_CHARS, IN_FLIGHT
from posthouse.bench.relay.events import Supply
from posthouse.bench.relay.ingest import ACCEPTED, Ingest
from posthouse.bench.relay.process import RunningRelay
from posthouse.bench.relay.raw_stream import open_raw
from posthouse.client.signing import sign_event
from posthouse.model.event import encode_event
from posthouse.model.kinds import MESSAGE

_BODY = "x" * BODY_CHARS


class MailSupply(Supply):
    """Signs messages of one key, and plain events of the same size and tags; no two are equal."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 0

    def messages(self, nodes: Sequence[str], each: int, kind: int = MESSAGE) -> list[bytes]:
        """Return EVENT commands of direct messages, so many for each node, taking turns."""
        return [self._message(node, kind) for _ in range(each) for node in nodes]

    def _message(self, node: str, kind: int) -> bytes:
        self._at_ns += 1
        self._number += 1
        tags = (("p", node), ("c", f"{self._number:012d}"))
        return b'["EVENT",%b]' % encode_event(sign_event(self.key, kind, _BODY, tags, self._at_ns))


class MailIngest(Ingest):
    """One sender of a relay."""

    supply: MailSupply

    async def fill(self, nodes: Sequence[str], each: int) -> None:
        """Queue so many messages for each node."""
        await self.rate(self.supply.messages(nodes, each), IN_FLIGHT * 4)


async def open_sender(relay: RunningRelay) -> MailIngest:
    """Open a sender with a key of its own."""
    supply = MailSupply()
    return MailIngest(await open_raw(relay.host, relay.port, supply.key, ACCEPTED), supply)
