"""The table of routes, gathered from the resources; a new resource is a new file and a name here."""

from __future__ import annotations

from itertools import chain

from posthouse.relay.http.resources import (
    access,
    address,
    authentication,
    blocks,
    contract,
    count,
    event,
    events,
    export,
    health,
    info,
    invites,
    join,
    journal,
    locks,
    members,
    meshes,
    messages,
    metrics,
    prune,
    queues,
    stream,
    subscriptions,
    topics,
)
from posthouse.relay.http.route import Route

_RESOURCES = (
    health,
    info,
    contract,
    metrics,
    authentication,
    events,
    count,
    event,
    address,
    stream,
    meshes,
    members,
    access,
    topics,
    subscriptions,
    blocks,
    invites,
    join,
    locks,
    messages,
    queues,
    journal,
    export,
    prune,
)

ROUTES: tuple[Route, ...] = tuple(chain.from_iterable(resource.ROUTES for resource in _RESOURCES))
