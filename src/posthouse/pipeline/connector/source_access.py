"""Addresses of sources, and how a worker opens one: a file or a database directly, a relay with a token.

A directory stands for the stores in it and below it. The driver has the key and requests the token; an Access is
sent to workers and holds the token but never a key. A token is valid for an hour; a run requests a new one when it
starts to read a source.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.connector.feeds import FEEDS, STORES, Feed
from posthouse.pipeline.connector.server_store import SCHEMES as SERVER_SCHEMES
from posthouse.pipeline.connector.server_store import ServerStore, parse_server
from posthouse.pipeline.connector.stores import COPY_NAME, FileStore, RelayStore
from posthouse.pipeline.epochs import History, Segment

if TYPE_CHECKING:
    from posthouse.client import ClientOptions
    from posthouse.keys import NodeKey


#: Kind of store -> its file name.
FILE_NAMES = {kind: f"{kind}.db" for kind in STORES}
_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """One source."""

    #: The form that the lake stores: an absolute path, the origin of a relay, or the URL of a database.
    url: str
    is_relay: bool = False
    #: whether it is a relay's store in PostgreSQL
    is_server: bool = False

    @property
    def is_file(self) -> bool:
        return not self.is_relay and not self.is_server


def parse_source(text: str) -> Address:
    """Return the only source that a text names, or raise source_invalid."""
    found = parse_sources([text])
    if len(found) != 1:
        raise error("source_invalid", url=text, reason=f"it holds {len(found)} stores")
    return found[0]


def parse_sources(texts: Iterable[str]) -> tuple[Address, ...]:
    """Return the sources that texts name, without duplicates; a directory names every store below it."""
    found: dict[str, Address] = {}
    for text in texts:
        for address in _sources_of(text):
            found[address.url] = address
    return tuple(found.values())


def _sources_of(text: str) -> list[Address]:
    if text.partition("://")[0] in _SCHEMES:
        return [Address(_origin(text), is_relay=True)]
    if text.partition("://")[0] in SERVER_SCHEMES:
        return [Address(parse_server(text), is_server=True)]
    path = Path(text.removeprefix("file://")).expanduser().absolute()
    if path.is_dir():
        found = _stores_below(path)
        if not found:
            raise error("source_invalid", url=text, reason="no store is in this directory or below it")
        return [Address(str(each)) for each in found]
    if not path.is_file():
        raise error("source_invalid", url=text, reason="there is no such file")
    return [Address(str(path))]


def _stores_below(directory: Path) -> list[Path]:
    """Return the stores in a directory and below it, but not inside a table of a lake; links are not followed.

    If a directory has no store but a follower's copy of one, as before a promotion, the copy counts.
    """
    found: list[Path] = []
    for walked, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if name != "_delta_log" and not name.startswith("."))
        stores = [name for name in FILE_NAMES.values() if name in files]
        found += [Path(walked) / name for name in stores or [COPY_NAME] if name in files]
    return found


def _origin(text: str) -> str:
    """Return scheme, host and port of a relay, without the client's URL parser: workers do not import the client."""
    try:
        parts = urlsplit(text)
        scheme, port = _SCHEMES[parts.scheme], parts.port
    except ValueError as fault:
        raise error("source_invalid", url=text, reason=str(fault)) from fault
    if not parts.hostname:
        raise error("source_invalid", url=text, reason="it names no host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{host}:{port or _PORTS[scheme]}"


@dataclass(frozen=True)
class Access:
    """A source that a worker can open: its address, and for a relay a token that is valid for an hour."""

    url: str
    token: str | None = None
    tls_ca: str | None = None

    def __repr__(self) -> str:
        return f"Access({self.url!r})"

    @property
    def address(self) -> Address:
        return parse_source(self.url)

    def open(self) -> FileStore | RelayStore | ServerStore:
        """Return the source as a context manager; raise source_not_shared if this machine does not have the file.

        The driver has parsed the address, so the file exists where the command runs.
        """
        try:
            address = self.address
        except PosthouseError as failure:
            raise not_shared(self.url, "the file does not exist there") from failure
        if address.is_server:
            return ServerStore(address.url)
        if address.is_file:
            return FileStore(Path(address.url))
        if not self.token:
            raise error("source_invalid", url=self.url, reason="reading a relay requires a token")
        return RelayStore(address.url, self.token, self.tls_ca)


def not_shared(url: str, reason: str) -> PosthouseError:
    """Return the error for a worker that cannot see the store that the driver named."""
    return error("source_not_shared", url=url, host=socket.gethostname(), reason=reason)


def check_planned(access: Access, history: History, segment: Segment) -> None:
    """Raise source_not_shared if the store that a worker sees lacks the rows that the driver planned to read."""
    if history.shared_with(segment.epoch) < segment.to:
        raise not_shared(access.url, f"the file there is another store, without this one's records up to {segment.to}")


def read_history(access: Access, feed: Feed | None = None) -> History:
    """Return the current history of a source; raise feed_invalid if it does not have the feed."""
    with access.open() as store:
        history = store.history()
    if feed is not None and history.store not in feed.stores:
        feeds = ", ".join(sorted(each.name for each in FEEDS.values() if history.store in each.stores))
        hint = f"A store of kind {history.store} has: {feeds}."
        raise error("feed_invalid", url=access.url, feed=feed.name, feeds=feeds, hint=hint)
    return history


def find_feed(name: str, url: str) -> Feed:
    """Return the feed with a name, or raise feed_invalid."""
    if name not in FEEDS:
        raise error("feed_invalid", url=url, feed=name, feeds=", ".join(sorted(FEEDS)))
    return FEEDS[name]


def access_with_key(url: str, key: NodeKey, options: ClientOptions | None = None) -> Access:
    """Return access to a source: to a file directly, to a relay with a token for this key."""
    address = parse_source(url)
    if not address.is_relay:
        return Access(address.url)
    import asyncio

    from posthouse.client import ClientOptions

    chosen = options or ClientOptions()
    token = asyncio.run(_get_token(address.url, key, chosen))
    return Access(address.url, token, _text(chosen.tls_ca))


async def _get_token(origin: str, key: NodeKey, options: ClientOptions) -> str:
    from posthouse.client import Client

    async with Client(origin, key, options=options) as client:
        return await client.token()


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
