"""A process that accepts events as fast as it can and tells each answer, until it is killed.

`python -m tests.faults.accept_worker FOLDER FIRST`: four connections send numbered events of their own author, from
number FIRST - 5 on, so that a new run repeats a little of the one before. Lines: author number, event number, seq,
whether it was a duplicate.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from posthouse.model.clock import SystemClock
from posthouse.model.event import encode_event
from posthouse.model.limits import INT64_MAX
from posthouse.model.rate import Rate
from posthouse.relay.accept.submission import Answered
from posthouse.relay.engine import EngineSettings, RelayEngine
from posthouse.relay.wire.accept_results import Accepted
from tests.relay.authors import Author

AUTHORS = 4
REPEATED = 5
_AHEAD = 32  # unanswered events of one connection


def event_of(author: Author, number: int) -> bytes:
    """Return event `number` of an author: the same bytes in every process."""
    return encode_event(author.event(1 + number % 2 * 9_999, ("n", str(number)), created_at_ns=1_000 + number))


class Connection:
    """Sends the events of one author and tells the answers."""

    def __init__(self, core: RelayEngine, author: int, first: int) -> None:
        self._author = author
        self._signer = Author(author)
        self._next = max(0, first - REPEATED)
        self._numbers: dict[str | None, int] = {}
        self._submitter = core.open_submitter(self._answered)

    def send(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            raw = event_of(self._signer, number)
            self._numbers[raw[7:71].decode()] = number
            self._submitter.submit([raw])
        self._next += count

    def _answered(self, answered: Sequence[Answered]) -> None:
        for _event_id, answer in answered:
            assert isinstance(answer, Accepted), answer
            number = self._numbers.pop(answer.id)
            sys.stdout.write(f"{self._author} {number} {answer.seq} {int(answer.duplicate)}\n")
        sys.stdout.flush()
        self.send(len(answered))


async def main(folder: Path, first: int) -> None:
    """Accept until the process ends."""
    fast = Rate(10**9, 10**9)
    settings = EngineSettings(folder, Author(99).node, event_rate=fast, known_ids_ns=INT64_MAX)  # events of 1970
    core = await RelayEngine.start(settings, SystemClock())
    for author in range(1, AUTHORS + 1):
        Connection(core, author, first).send(_AHEAD)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
