"""The id under which a Pinch envelope stands in queues and records: 32 bytes, like that of an event.

Pinch message ids are unique to their sender only, and may come again after the queue's TTL; some envelopes have none.
The id is worked out from the sender, the message id and the moment of acceptance, so no two rows share it and the
journal's own record of the acceptance tells it.
"""

from __future__ import annotations

import hashlib


def delivery_id(sender: str, message_id: bytes, accepted_at_ns: int, number: int = 0) -> bytes:
    """Return the id; `number` tells envelopes without a message id apart that were accepted at one moment."""
    digest = hashlib.sha256()
    for part in (sender.encode(), message_id, b"%d" % accepted_at_ns, b"%d" % number):
        digest.update(len(part).to_bytes(4, "big") + part)
    return digest.digest()
