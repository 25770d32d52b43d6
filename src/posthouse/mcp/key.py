"""The idempotency key of a call: what makes a repeated call the same send.

A caller may give one as an argument. Else one is taken from `_meta` where a client puts an id that stays the same
when it repeats a call: our own name for it, or that of a client known to send one. The protocol itself has none. A key
becomes the client_message_id in the outbox (request_id of a lock), which is kept on disk by the daemon: it works over
a restart of this process, of the daemon, and of the relay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from posthouse.model.message import validate_client_message_id

#: in order of preference; the second is the id Claude Code gives each use of a tool
META_NAMES = ("posthouse/idempotencyKey", "claudecode/toolUseId")


def meta_key(meta: Mapping[str, Any] | None) -> str | None:
    """Return the key that `_meta` of a request carries; one that is no valid id is refused, never ignored."""
    for name in META_NAMES:
        value = (meta or {}).get(name)
        if value is not None:
            return validate_client_message_id(value if isinstance(value, str) else str(value))
    return None
