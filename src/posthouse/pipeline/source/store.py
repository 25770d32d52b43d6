"""A source opened for reading, whichever kind it is; used in Spark's workers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from posthouse.model.errors import error
from posthouse.pipeline.source.address import Address, parse_source
from posthouse.pipeline.source.feeds import FEEDS, Feed
from posthouse.pipeline.source.file_store import FileStore
from posthouse.pipeline.source.history import History
from posthouse.pipeline.source.relay_store import RelayStore


@dataclass(frozen=True)
class Access:
    """How a worker reaches a source: its address, and for a relay a token that is good for an hour."""

    url: str
    token: str | None = None
    tls_ca: str | None = None

    def __repr__(self) -> str:
        return f"Access({self.url!r})"

    @property
    def address(self) -> Address:
        return parse_source(self.url)

    def open(self) -> FileStore | RelayStore:
        """Return the source, to be entered as a context."""
        address = self.address
        if not address.is_relay:
            return FileStore(Path(address.url))
        if not self.token:
            raise error("source_invalid", url=self.url, reason="a relay is read with a token, and none was given")
        return RelayStore(address.url, self.token, self.tls_ca)


def read_history(access: Access, feed: Feed | None = None) -> History:
    """Return what a source holds now; refuse a feed that it does not have."""
    with access.open() as store:
        history = store.history()
    if feed is not None and history.store not in feed.stores:
        feeds = ", ".join(sorted(each.name for each in FEEDS.values() if history.store in each.stores))
        hint = f"A store of kind {history.store} has: {feeds}."
        raise error("feed_invalid", url=access.url, feed=feed.name, feeds=feeds, hint=hint)
    return history


def find_feed(name: str, url: str) -> Feed:
    """Return the feed of a name."""
    if name not in FEEDS:
        raise error("feed_invalid", url=url, feed=name, feeds=", ".join(sorted(FEEDS)))
    return FEEDS[name]
