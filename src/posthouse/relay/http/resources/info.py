"""/v1/info: who this relay is, what it can do and the limits it keeps."""

from __future__ import annotations

from typing import Any

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.model import limits
from posthouse.relay.http.call import Call
from posthouse.relay.http.route import Access, Route
from posthouse.relay.stream.connection import features_of
from posthouse.version import __version__


class Info(msgspec.Struct):
    """What anybody may know about a relay."""

    name: str
    version: str
    #: the relay's node id
    relay: str
    epoch: str
    now_ns: int
    #: whether the clocks are stepped by a test
    is_test_clock: bool
    limits: dict[str, int]
    #: what it can do: true, or parameters
    features: dict[str, Any]


async def info(call: Call) -> Answer:
    """Describe this relay."""
    edge = call.edge
    answer = Info(
        name="posthouse",
        version=__version__,
        relay=edge.relay,
        epoch=edge.core.store.epoch,
        now_ns=edge.clock.wall_ns(),
        is_test_clock=hasattr(edge.clock, "offsets"),
        limits=wire_limits(call),
        features=features_of(edge),
    )
    return json_answer(answer)


def wire_limits(call: Call) -> dict[str, int]:
    """Return the limits that clients have to keep."""
    edge, deliveries = call.edge.limits, call.edge.core.settings.deliveries
    return {
        "event_bytes": limits.EVENT_MAX_CANONICAL_BYTES,
        "tags": limits.EVENT_MAX_TAGS,
        "tag_value_bytes": limits.TAG_VALUE_MAX_BYTES,
        "created_at_ahead_s": limits.CREATED_AT_MAX_AHEAD_NS // limits.SECOND_NS,
        "events_per_request": limits.EVENTS_PER_REQUEST,
        "query_limit": limits.QUERY_MAX_LIMIT,
        "filter_values": limits.FILTER_MAX_VALUES,
        "filters_per_subscription": limits.FILTERS_PER_SUBSCRIPTION,
        "subscriptions_per_connection": edge.subscriptions_per_connection,
        "body_bytes": edge.body_bytes,
        "frame_bytes": edge.frame_bytes,
        "commands_per_frame": edge.commands_per_frame,
        "buffer_events": edge.buffer_events,
        "buffer_bytes": edge.buffer_bytes,
        "challenge_s": limits.CHALLENGE_TTL_S,
        "token_s": limits.TOKEN_TTL_S,
        "message_body_bytes": limits.BODY_MAX_BYTES,
        "confirmation_ids": limits.CONFIRMATION_MAX_IDS,
        "receive_window": limits.RECEIVE_WINDOW_MAX,
        "queue_messages": deliveries.queue_max,
        "queue_ttl_s": round(deliveries.queue_ttl_s),
    }


ROUTES = (Route("GET", "/v1/info", info, "Describe this relay", Access.ANYBODY, answers={200: Info}),)
