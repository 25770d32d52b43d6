"""Every route of the local interface. If you add one: 1. here, 2. DaemonClient, 3. docs/reference."""

from __future__ import annotations

from posthouse.daemon.ipc.call import Route
from posthouse.daemon.ipc.routes import about, events, inbox, locks, messages, outbox, peers, send, topics
from posthouse.daemon.ipc.service import Table

ROUTES: Table = {
    "/v1/send": {"POST": Route(send.send)},
    "/v1/topic/create": {"POST": Route(topics.create)},
    "/v1/topic/post": {"POST": Route(send.post)},
    "/v1/topic/subscribe": {"POST": Route(topics.subscribe)},
    "/v1/topic/unsubscribe": {"POST": Route(topics.unsubscribe)},
    "/v1/topic/list": {"GET": Route(topics.list_topics)},
    "/v1/inbox": {"GET": Route(inbox.read)},
    "/v1/inbox/seen": {"POST": Route(inbox.seen)},
    "/v1/inbox/{id}": {"GET": Route(inbox.show)},
    "/v1/outbox": {"GET": Route(outbox.read)},
    "/v1/outbox/requeue": {"POST": Route(outbox.requeue)},
    "/v1/outbox/drop": {"POST": Route(outbox.drop)},
    "/v1/outbox/{id}": {"GET": Route(outbox.inspect)},
    "/v1/events": {"GET": Route(events.stream)},
    "/v1/messages/{id}": {"GET": Route(messages.show)},
    "/v1/history": {"GET": Route(messages.history)},
    "/v1/locks/acquire": {"POST": Route(locks.acquire)},
    "/v1/locks/renew": {"POST": Route(locks.renew)},
    "/v1/locks/release": {"POST": Route(locks.release)},
    "/v1/peers": {"GET": Route(peers.peers)},
    "/v1/profile": {"POST": Route(peers.profile)},
    "/v1/version": {"GET": Route(about.version)},
    "/v1/health": {"GET": Route(about.health)},
    "/v1/metrics": {"GET": Route(about.metrics)},
}
