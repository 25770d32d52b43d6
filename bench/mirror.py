"""How many bytes two relays exchange to find ten different events among many, and how long the fingerprints take.

Both sides answer each other in memory, message by message, as a mirror carries them; the network and the reading of the
stores are not part of it. The bytes do not depend on the machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from bench.comparison import Requirement, describe_machine
from posthouse.relay.replication.range_fingerprints import (
    answer,
    decode_message,
    difference_of,
    encode_message,
    first_message,
    is_settled,
    key_of,
)

REQUIRED = (
    Requirement("Kilobytes to find ten different events", "exchange", "kilobytes", "at most", 64),
    Requirement("Messages to find ten different events", "exchange", "messages", "at most", 10),
)
EVENTS, QUICK_EVENTS = 1_000_000, 50_000
_DIFFERENT = 10
_SPAN_NS = 90 * 86_400 * 10**9  # the creation times of the events


def measure_mirror(events: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Compare two sets that share all events but ten, five on each side."""
    chance = random.Random(20)
    note(f"making {events:,} keys")
    common = [key_of(chance.randrange(_SPAN_NS), chance.randbytes(32)) for _ in range(events)]
    different = [key_of(chance.randrange(_SPAN_NS), chance.randbytes(32)) for _ in range(_DIFFERENT)]
    half = _DIFFERENT // 2
    sides = [sorted(common + different[:half]), sorted(common + different[half:])]
    note("comparing")
    report = {"events": events, "exchange": _exchange(sides), "machine": describe_machine()}
    return report | {"required": [requirement.evaluate(report) for requirement in REQUIRED]}


def _exchange(sides: list[list[bytes]]) -> dict[str, float]:
    message, messages, size, found = first_message(), 0, 0, 0
    begin_s = time.perf_counter()
    while not is_settled(message):
        data = encode_message(message)
        message = answer(sides[messages % 2], decode_message(data))
        messages, size = messages + 1, size + len(data)
        found += sum(map(len, difference_of(message)))
    elapsed_s = time.perf_counter() - begin_s
    assert found == _DIFFERENT, "the comparison is wrong"
    size += len(encode_message(message))
    return {"kilobytes": round(size / 1000, 1), "messages": messages, "seconds": round(elapsed_s, 2)}
