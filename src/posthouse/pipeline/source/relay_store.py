"""A relay, read over HTTP through /v1/export: for whoever administers it, from any host.

A worker gets a token that is good for an hour, never a key. Pages are short; one that fails is not retried here, since
Spark runs a task again by itself. The header Posthouse-Extent tells what the relay holds.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit

from posthouse.journal.cursor import Cursor
from posthouse.model.codes.registry import REGISTRY
from posthouse.model.errors import PosthouseError, error
from posthouse.pipeline.source.feeds import JOURNAL, Feed
from posthouse.pipeline.source.history import Ancestor, History

if TYPE_CHECKING:
    import pyarrow as pa

PAGE_ROWS = 10_000  # the most that a relay gives at once
EXTENT_HEADER = "Posthouse-Extent"
_TIMEOUT_S = 60.0
_FIXED = ("type", "title", "status", "code", "detail", "hint", "instance")


class RelayStore:
    """A relay with a connection that is kept; a context manager."""

    def __init__(self, origin: str, token: str, tls_ca: str | None = None) -> None:
        self.origin = origin
        self._token = token
        self._tls_ca = tls_ca
        self._connection: http.client.HTTPConnection | None = None
        self._epoch: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def history(self) -> History:
        """Return what the relay holds now."""
        _rows, extent = self._page(JOURNAL, None, 1)
        ancestors = [(epoch, shared) for epoch, shared in reversed(extent["ancestors"])]
        names = [epoch for epoch, _ in ancestors] + [extent["epoch"]]
        forks = [0, *(shared for _, shared in ancestors)]
        parents = [None, *names[:-1]]
        lineage = tuple(Ancestor(*each, None) for each in zip(names, parents, forks, strict=True))
        self._epoch = extent["epoch"]
        return History("relay", lineage, extent["pruned_through"], extent["head"])

    def read(self, feed: Feed, after: int, to: int) -> Iterator[pa.Table]:
        """Yield the rows (after, to] of a feed in seq order, a page at a time."""
        import pyarrow.compute as pc

        if self._epoch is None:
            self.history()
        while after < to:
            page, _extent = self._page(feed, str(Cursor(str(self._epoch), after)), min(PAGE_ROWS, to - after))
            if not page.num_rows:
                return
            last = page.column("seq")[-1].as_py()
            yield page if last <= to else page.filter(pc.less_equal(page.column("seq"), to))
            after = last

    def _page(self, feed: Feed, after: str | None, limit: int) -> tuple[pa.Table, dict[str, Any]]:
        import pyarrow as pa

        given = {"limit": str(limit)} | ({} if after is None else {"after": after})
        try:
            data, extent = self._get(f"/v1/export/{feed.name}?{urlencode(given)}")
        except (OSError, http.client.HTTPException) as failure:
            reason = str(failure) or type(failure).__name__
            raise error("relay_unreachable", relay=self.origin, reason=reason) from failure
        if extent is None:
            raise error("answer_invalid", relay=self.origin, reason=f"it lacks {EXTENT_HEADER}: an older relay")
        with pa.ipc.open_stream(data) as stream:
            return stream.read_all().select(list(feed.columns)).cast(feed.schema()), json.loads(extent)

    def _get(self, target: str) -> tuple[bytes, str | None]:
        connection = self._connect()
        connection.request("GET", target, headers={"Authorization": f"Bearer {self._token}"})
        response = connection.getresponse()
        data = response.read()
        if response.status != 200:
            raise self._problem(response.status, data)
        return data, response.getheader(EXTENT_HEADER)

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            parts = urlsplit(self.origin)
            host, port = parts.hostname or "", parts.port
            if parts.scheme == "https":
                context = ssl.create_default_context(cafile=self._tls_ca)
                self._connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
            else:
                self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        return self._connection

    def _problem(self, status: int, data: bytes) -> PosthouseError:
        try:
            problem = json.loads(data)
        except ValueError:
            problem = None
        if not isinstance(problem, dict) or problem.get("code") not in REGISTRY:
            return error("answer_invalid", relay=self.origin, reason=f"status {status} without a problem")
        fields = {name: value for name, value in problem.items() if name not in _FIXED}
        return error(problem["code"], hint=problem.get("hint"), **fields)
