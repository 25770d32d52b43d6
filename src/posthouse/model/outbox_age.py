"""How old an unsent message may become: never older than the relay remembers its id.

A retry that reaches the relay after its record is gone would be accepted as a new message. The bound leaves a
margin below the record's life: a tenth of it, at least a day. Relays that never forget have a fixed bound, because
nobody waits longer than that for a message.
"""

from __future__ import annotations

import math

DEFAULT_MAX_AGE_H = 168
PERMANENT_BOUND_H = 720
MARGIN_MIN_H = 24
MARGIN_H_PER_DAY = 2.4  # a tenth of a day


def max_age_bound_h(retention_days: int | None) -> int:
    """Return the most hours a row may wait with a relay that keeps records so long; None: for ever."""
    if retention_days is None:
        return PERMANENT_BOUND_H
    return retention_days * 24 - max(MARGIN_MIN_H, math.ceil(retention_days * MARGIN_H_PER_DAY))


def default_max_age_h(retention_days: int | None) -> int:
    """Return the hours a row waits when nobody set them."""
    return min(DEFAULT_MAX_AGE_H, max_age_bound_h(retention_days))
