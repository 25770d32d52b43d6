"""/metrics: the numbers of this process, in Prometheus' text form."""

from __future__ import annotations

from posthouse.answer import Answer
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Route
from posthouse.relay.metrics import CONTENT_TYPE


async def metrics(call: Call) -> Answer:
    """Show the metrics; docs/reference/metrics.md explains them."""
    await call.edge.core.attendance.count()
    return Answer(200, call.edge.meters.render(), CONTENT_TYPE)


ROUTES = (Route("GET", "/metrics", metrics, "Show metrics", answers={200: None}, media_type="text/plain"),)
