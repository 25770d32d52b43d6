"""EVENT with other than one argument: the connection takes the well-formed ones itself, in lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.relay.stream.connection import Connection


def event(connection: Connection, arguments: Sequence[bytes]) -> None:
    """Refuse."""
    raise error("frame_malformed", reason=f"EVENT has one argument, an event, not {len(arguments)}")
