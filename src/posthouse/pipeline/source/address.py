"""Where history comes from: a store's file on this host, or a relay over HTTP.

A directory stands for the stores in it. The address travels to workers as a part of their options, so it holds
nothing secret: a relay's token goes beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from posthouse.model.errors import error

#: the file of each kind of store, within its directory
FILE_NAMES = {"relay": "relay.db", "bus": "bus.db", "outbox": "outbox.db", "inbox": "inbox.db"}
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """One source."""

    #: as the lake keeps it: an absolute path, or the origin of a relay
    url: str
    is_relay: bool


def parse_source(text: str) -> Address:
    """Return the one source a text names, or raise source_invalid."""
    found = parse_sources([text])
    if len(found) != 1:
        raise error("source_invalid", url=text, reason=f"it holds {len(found)} stores")
    return found[0]


def parse_sources(texts: Iterable[str]) -> tuple[Address, ...]:
    """Return the sources that texts name, each once; a directory names every store in it."""
    found: dict[str, Address] = {}
    for text in texts:
        for address in _sources_of(text):
            found[address.url] = address
    return tuple(found.values())


def _sources_of(text: str) -> list[Address]:
    if text.partition("://")[0] in _SCHEMES:
        return [Address(_origin(text), is_relay=True)]
    path = Path(text.removeprefix("file://")).expanduser().absolute()
    if path.is_dir():
        inside = [path / name for name in FILE_NAMES.values() if (path / name).is_file()]
        if not inside:
            raise error("source_invalid", url=text, reason="the directory holds no store")
        return [Address(str(each), is_relay=False) for each in inside]
    if not path.is_file():
        raise error("source_invalid", url=text, reason="there is no such file")
    return [Address(str(path), is_relay=False)]


def _origin(text: str) -> str:
    """Return scheme, host and port of a relay; workers do without the client that could say more."""
    try:
        parts = urlsplit(text)
        scheme, port = _SCHEMES[parts.scheme], parts.port
    except ValueError as fault:
        raise error("source_invalid", url=text, reason=str(fault)) from fault
    if not parts.hostname:
        raise error("source_invalid", url=text, reason="it names no host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{port or _PORTS[scheme]}"
