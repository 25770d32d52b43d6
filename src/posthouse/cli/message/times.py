"""Times of deliveries as people read them."""

from __future__ import annotations


def moment(at_ns: int | None) -> str:
    """Return a time of the relay, `-` for what has not happened."""
    from posthouse.model.timestamps import format_utc

    return "-" if at_ns is None else format_utc(at_ns)


def short(node: str) -> str:
    """Return a node id as it stands in tables."""
    return node.removeprefix("ed25519:").removeprefix("pinch:")[:8]
