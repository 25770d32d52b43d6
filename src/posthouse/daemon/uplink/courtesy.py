"""Courtesy: how long a lane rests between two frames, so that programs that send are not kept waiting by a backlog.

A backlog leaves several times faster than it has to, and takes the processor from whoever sends meanwhile; all the more
when the relay runs on the same machine. So while programs send in numbers a lane that has more than one frame to send
rests after each for as long as all lanes would need for theirs one by one, so that about one frame is on its way. Alone
it never rests. Pure.
"""

from __future__ import annotations

_BUSY_ACCEPTS = 16  # during one frame; fewer do not notice the backlog
_REST_MAX_S = 0.5  # a slow relay is no reason to leave a backlog where it is


def rest_s(*, is_full: bool, accepted: int, took_s: float, lanes: int) -> float:
    """Return how long to rest after a frame that took so long while so many sends were accepted."""
    return min(lanes * took_s, _REST_MAX_S) if is_full and accepted >= _BUSY_ACCEPTS else 0.0
