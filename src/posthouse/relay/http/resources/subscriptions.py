"""/v1/meshes/{mesh}/subscriptions: the patterns of topics whose messages the asker wants."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from posthouse.answer import Answer, json_answer
from posthouse.model.limits import SUBJECT_MAX_BYTES
from posthouse.relay.http.call import Call
from posthouse.relay.http.parameters import Done
from posthouse.relay.http.route import Route

Pattern = Annotated[
    str, Meta(description="A subject, with * and > as wildcards.", min_length=1, max_length=SUBJECT_MAX_BYTES)
]


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription of the asker."""

    pattern: Pattern


class SubscriptionList(msgspec.Struct):
    """The subscriptions of the asker."""

    subscriptions: list[SubscriptionBody]


class SubscriptionQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription."""

    pattern: Pattern


async def show(call: Call) -> Answer:
    """List the asker's subscriptions."""
    patterns = call.edge.core.participation.subscriptions(call.node, call.params["mesh"])
    return json_answer(SubscriptionList([SubscriptionBody(pattern) for pattern in patterns]))


async def subscribe(call: Call) -> Answer:
    """Subscribe."""
    node = call.node
    given = await call.body(SubscriptionBody)
    await call.edge.core.participation.subscribe(node, call.params["mesh"], given.pattern)
    return json_answer(given)


async def unsubscribe(call: Call) -> Answer:
    """End a subscription."""
    pattern = call.arguments(SubscriptionQuery).pattern
    await call.edge.core.participation.unsubscribe(call.node, call.params["mesh"], pattern)
    return json_answer(Done())


_PATH = "/v1/meshes/{mesh}/subscriptions"
ROUTES = (
    Route("GET", _PATH, show, "List your subscriptions", answers={200: SubscriptionList}),
    Route("POST", _PATH, subscribe, "Subscribe to topics", bodies=(SubscriptionBody,), answers={200: SubscriptionBody}),
    Route("DELETE", _PATH, unsubscribe, "End a subscription", query=SubscriptionQuery, answers={200: Done}),
)
