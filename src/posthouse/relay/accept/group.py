"""Groups: how many parcels share one hand-over to the writer."""

from __future__ import annotations

from posthouse.relay.accept.job import Parcel

GROUP_EVENTS = 512  # keeps a transaction, and so the answers of everybody in it, in the low milliseconds
GROUPS_AHEAD = 2  # one commits, one waits: the writer never idles, and what comes meanwhile shares a group


def take_group(ready: list[Parcel], most: int) -> tuple[list[Parcel], list[Parcel]]:
    """Return the first parcels with together at most `most` events, but at least one, and the rest."""
    count = 0
    for position, parcel in enumerate(ready):
        count += len(parcel.jobs)
        if count > most and position:
            return ready[:position], ready[position:]
    return ready, []
