"""How workers reach the sources of a command: files as they are, relays with a token got here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.identity import load_key
from posthouse.cli.pipeline.place import Place

if TYPE_CHECKING:
    from posthouse.pipeline.source.store import Access


def open_sources(place: Place) -> list[Access]:
    """Return every source of a command; a relay is asked for a token with the key of this node."""
    from posthouse.pipeline.source.address import parse_sources
    from posthouse.pipeline.source.store import Access
    from posthouse.pipeline.source.token import access_with_key

    found: list[Access] = []
    for address in parse_sources(place.sources()):
        if address.is_relay:
            found.append(access_with_key(address.url, load_key(place.key_file), place.reach().options()))
        else:
            found.append(Access(address.url))
    return found


def relays_of(place: Place) -> list[str]:
    """Return the relays among the sources of a command."""
    from posthouse.pipeline.source.address import parse_sources

    return [address.url for address in parse_sources(place.sources()) if address.is_relay]
