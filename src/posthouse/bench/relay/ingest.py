"""How fast a relay accepts: one stream with a fixed number of events unanswered, each answered after its commit."""

from __future__ import annotations

import time

from posthouse.bench.relay.events import Supply
from posthouse.bench.relay.process import RunningRelay
from posthouse.bench.relay.raw_stream import RawStream, open_raw

ACCEPTED = b',"duplicate":false'


class Ingest:
    """One publisher of a relay."""

    def __init__(self, stream: RawStream, supply: Supply) -> None:
        self._stream = stream
        self.supply = supply

    async def rate(self, commands: list[bytes], in_flight: int) -> float:
        """Send the commands with so many unanswered and return how many per second were accepted."""
        stream, total = self._stream, len(commands)
        before, sent = stream.count, 0

        def send_next(count: int) -> None:
            nonlocal sent
            upto = min(count - before + in_flight, total)
            if upto > sent:
                stream.send(commands[sent:upto])
                sent = upto

        stream.on_count = send_next
        started = time.perf_counter()
        send_next(before)
        await stream.wait_count(before + total)
        stream.on_count = None
        return total / (time.perf_counter() - started)

    def close(self) -> None:
        self._stream.close()


async def open_ingest(relay: RunningRelay) -> Ingest:
    """Open a publisher with a key of its own."""
    supply = Supply()
    return Ingest(await open_raw(relay.host, relay.port, supply.key, ACCEPTED), supply)
