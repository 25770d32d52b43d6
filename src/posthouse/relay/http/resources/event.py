"""/v1/events/{id}: one stored event."""

from __future__ import annotations

from posthouse.answer import Answer
from posthouse.model.errors import error
from posthouse.model.event_structure import is_event_id
from posthouse.relay.http.call import Call
from posthouse.relay.http.pages import stored_event
from posthouse.relay.http.parameters import StoredEventBody
from posthouse.relay.http.route import Route


async def event(call: Call) -> Answer:
    """Return an event and its seq."""
    event_id = call.params["id"]
    if not is_event_id(event_id):
        raise error("id_invalid", id=event_id[:80], reason="an event id is 64 lower-case hexadecimal digits")
    return Answer(200, stored_event(await call.edge.core.event(call.node, event_id)))


ROUTES = (Route("GET", "/v1/events/{id}", event, "Read one event", answers={200: StoredEventBody}),)
