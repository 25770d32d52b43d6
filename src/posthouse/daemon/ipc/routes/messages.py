"""GET /v1/messages/{id} and GET /v1/history: where one message is, and what was said."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from posthouse.answer import Answer, json_answer
from posthouse.client import Client, Stored
from posthouse.daemon.ipc.call import Call
from posthouse.daemon.roster import TOPIC_MARK
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event_structure import is_event_id
from posthouse.model.history_item import history_item
from posthouse.model.kinds import MESSAGE

DEFAULT_LIMIT = 50
MAX_LIMIT = 500


class _History(msgspec.Struct):
    topic: str | None = None
    #: a name, prefix or node id
    with_: str | None = msgspec.field(default=None, name="with")
    #: where the last answer ended
    before: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] = DEFAULT_LIMIT


async def show(call: Call) -> Answer:
    """Return the outbox row of a message and the relay's states per recipient; the id may be the row's too."""
    row = await _row(call)
    if row is None and not is_event_id(call.id):
        raise error("outbox_row_unknown", id=call.id)
    message_id = call.id if row is None else row["message_id"]
    relay, failure = await _states(call, message_id)
    if row is None and relay is None and failure is not None:
        raise failure
    return json_answer({"outbox": row, "relay": relay, "relay_error": None if failure is None else failure.code})


async def history(call: Call) -> Answer:
    """Return messages of a topic, or with a member, newest first."""
    given = call.arguments(_History)
    if (given.topic is None) == (given.with_ is None):
        raise error("parameter_invalid", name="topic", reason="give either topic or with")
    client = call.daemon.uplink.client
    wanted: dict[str, Any] = {"kinds": [MESSAGE], "mesh": call.daemon.settings.mesh}
    if given.topic is not None:
        wanted["#t"] = [given.topic.removeprefix(TOPIC_MARK)]
    else:
        both = [client.key.node, await call.daemon.resolve(str(given.with_))]
        wanted |= {"authors": both, "#p": both}
    page = await client.query(wanted, limit=given.limit, order="desc", cursor=given.before)
    shown = [_shown(client, call, stored) for stored in page.events]
    return json_answer({"messages": shown, "before": page.cursor})


def _shown(client: Client, call: Call, stored: Stored) -> dict[str, Any]:
    event = stored.event
    try:
        body, undecryptable = client.open(event), None
    except PosthouseError as failure:
        body, undecryptable = None, failure.code
    return history_item(stored.seq, event, call.daemon.roster.name_of(event.pubkey), body, undecryptable)


async def _row(call: Call) -> dict[str, Any] | None:
    try:
        return (await call.daemon.outbox.find(call.id)).shown()
    except PosthouseError as failure:
        if failure.code != "outbox_row_unknown":
            raise
        return None


async def _states(call: Call, message_id: str) -> tuple[Any, PosthouseError | None]:
    try:
        return msgspec.to_builtins(await call.daemon.uplink.client.message(message_id)), None
    except PosthouseError as failure:
        return None, failure
