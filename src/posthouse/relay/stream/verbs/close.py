"""["CLOSE", sub]: end a subscription; nothing is answered, and nothing of it comes after what is under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.model.errors import error
from posthouse.relay.stream.verbs.arguments import expect, read_sub

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection


def close(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Close a subscription."""
    expect(arguments, "CLOSE", '["CLOSE", sub]', 1, 1)
    sub = read_sub(arguments[0])
    subscription = connection.subscriptions.get(sub)
    if subscription is None:
        raise error("subscription_unknown", sub=sub)
    subscription.close()
