"""Which store an epoch belongs to: it is named by the first epoch of its line, which no restore changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping


def roots_of(parents: Mapping[str, str | None]) -> dict[str, str]:
    """Return the first known epoch of each epoch's line."""
    return {epoch: _root(parents, epoch) for epoch in parents}


def _root(parents: Mapping[str, str | None], epoch: str) -> str:
    seen = {epoch}
    while (parent := parents[epoch]) is not None and parent in parents and parent not in seen:
        epoch = parent
        seen.add(parent)
    return epoch
