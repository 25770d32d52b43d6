"""Back-pressure: when a mailbox warns its senders, and when it takes no more.

Depth is the number of messages waiting or in work, before the one that is decided. A full mailbox refuses, so
it never holds more than its maximum. The text of the refusal and the signal's content are contracts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from posthouse.model.reliability import Backpressure
from posthouse.model.signal import Signal, SignalType
from posthouse.model.timestamps import format_utc


class PressureState(enum.StrEnum):
    """How a mailbox feels."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Pressure:
    """The pressure of one mailbox and what follows from it."""

    #: 0 (empty) to 1 (full)
    level: float
    state: PressureState
    current_size: int
    max_mailbox_size: int
    #: why the message is refused, or None
    text: str | None = None

    @property
    def is_refused(self) -> bool:
        return self.text is not None


def judge_pressure(depth: int, config: Backpressure) -> Pressure:
    """Decide one message for a mailbox that holds `depth` messages."""
    most = config.max_mailbox_size
    level = min(1.0, depth / most)
    if not config.enabled:
        return Pressure(level, PressureState.OK, depth, most)
    if depth >= most:
        return Pressure(level, PressureState.CRITICAL, depth, most, f"backpressure: mailbox full ({depth}/{most})")
    state = PressureState.WARNING if level >= config.pressure_warning_at else PressureState.OK
    return Pressure(level, state, depth, most)


def pressure_signal(pressure: Pressure, endpoint: str, wall_ns: int) -> Signal | None:
    """Return the signal the sender gets about the endpoint, or None when there is nothing to tell."""
    if pressure.state is PressureState.OK:
        return None
    return Signal(
        type=SignalType.BACKPRESSURE,
        state=pressure.state.value,
        endpoint_subject=endpoint,
        timestamp=format_utc(wall_ns),
        data={
            "pressure": pressure.level,
            "currentSize": pressure.current_size,
            "maxMailboxSize": pressure.max_mailbox_size,
        },
    )
