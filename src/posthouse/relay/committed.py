"""An event as everybody learns of it: after its commit, never before.

Built once per event; `raw` is its JSON, serialised once and handed out verbatim by queries, streams and deliveries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from posthouse.model.event import Event


class Committed(msgspec.Struct, frozen=True, gc=False):
    """One event that is committed, or an ephemeral one that is passed on."""

    #: None for an ephemeral event: it has no place in the journal
    seq: int | None
    event: Event
    #: the event as JSON
    raw: bytes
    mesh: str
    #: the recipient of a direct message or of its confirmation; then only its author and this node may read it
    recipient: str | None

    def may_read(self, node: str) -> bool:
        """Tell whether a node that reads the mesh may read this event."""
        return self.recipient is None or node == self.recipient or node == self.event.pubkey


#: Called on the event loop with what one batch committed, in seq order, batches in commit order.
Listener = Callable[[Sequence[Committed]], None]
