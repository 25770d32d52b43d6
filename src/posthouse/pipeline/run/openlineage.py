"""OpenLineage events of a run: START, then COMPLETE or FAIL, sent to a lineage server by HTTP.

The inputs are the sources, the outputs the tables that the run committed. Events hold names, addresses and numbers of
rows, never content, tokens or keys. A lineage server that does not answer never fails a run: the caller gets the
reason. The API key of the server comes from the environment, so no settings file holds it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from posthouse.model.clock import Clock, format_utc
from posthouse.model.errors import PosthouseError
from posthouse.version import __version__

URL_VARIABLE = "OPENLINEAGE_URL"
KEY_VARIABLE = "OPENLINEAGE_API_KEY"
_PATH = "/api/v1/lineage"
_TIMEOUT_S = 5.0
_PRODUCER = f"https://pypi.org/project/posthouse/{__version__}"
_SPEC = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_STATISTICS = "https://openlineage.io/spec/facets/1-0-2/OutputStatisticsOutputDatasetFacet.json"
_ERROR = "https://openlineage.io/spec/facets/1-0-1/ErrorMessageRunFacet.json"


@dataclass(frozen=True)
class LineageServer:
    """A lineage server: its URL, and its API key if it requires one."""

    url: str
    api_key: str | None = field(default=None, repr=False)

    def post(self, event: Mapping[str, Any]) -> str | None:
        """Send an event; return the reason if the server did not accept it."""
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        body = json.dumps(event).encode()
        try:
            request = urllib.request.Request(self.url.rstrip("/") + _PATH, body, headers, method="POST")
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                return None
        except (OSError, ValueError, urllib.error.URLError) as failure:
            return str(failure)


class LineageRun:
    """The events of one run."""

    def __init__(self, clock: Clock, sources: Sequence[str], lake: str) -> None:
        self._clock = clock
        self._id = str(uuid.uuid4())
        self._inputs = [dataset(source) for source in sources]
        self._lake = lake

    def started(self) -> dict[str, Any]:
        """Return the event of the start."""
        return self._event("START", {}, {})

    def completed(self, rows: Mapping[str, int]) -> dict[str, Any]:
        """Return the event of a run that succeeded; `rows` is the number of rows committed, by table."""
        return self._event("COMPLETE", rows, {})

    def failed(self, failure: BaseException, rows: Mapping[str, int]) -> dict[str, Any]:
        """Return the event of a run that failed after it had committed some rows."""
        message = str(failure) if isinstance(failure, PosthouseError) else type(failure).__name__
        facet = {"_producer": _PRODUCER, "_schemaURL": _ERROR, "message": message, "programmingLanguage": "Python"}
        return self._event("FAIL", rows, {"errorMessage": facet})

    def _event(self, kind: str, rows: Mapping[str, int], facets: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "eventType": kind,
            "eventTime": format_utc(self._clock.wall_ns()),
            "producer": _PRODUCER,
            "schemaURL": _SPEC,
            "run": {"runId": self._id, "facets": dict(facets)},
            "job": {"namespace": "posthouse", "name": "pipeline.run"},
            "inputs": self._inputs,
            "outputs": [
                dataset(f"{self._lake}/{table}") | {"outputFacets": {"outputStatistics": _statistics(count)}}
                for table, count in sorted(rows.items())
            ],
        }


def dataset(address: str) -> dict[str, Any]:
    """Return the dataset at an address, named as OpenLineage names files, buckets and servers."""
    if "://" not in address:
        return {"namespace": "file", "name": address}
    parts = urlsplit(address)
    return {"namespace": f"{parts.scheme}://{parts.netloc}", "name": parts.path.strip("/") or "journal"}


def _statistics(rows: int) -> dict[str, Any]:
    return {"_producer": _PRODUCER, "_schemaURL": _STATISTICS, "rowCount": rows}
