"""`posthouse trace`: one message through bus, outbox, relay and inbox, with times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output, table
from posthouse.cli.near import USUAL, Near
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.cli.trace.steps import Step
    from posthouse.client.daemon import DaemonClient, InboxItem


def trace(
    id: Annotated[  # noqa: A002 - the domain's word
        str, Parameter(help="Its event id, client_message_id, or id in the outbox or inbox.")
    ],
    /,
    *,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Follow one message through the bus and the outbox of its host, the relay and the inbox of this host.

    A host knows its own part: on the sender's host the way to the relay and what became of it for each reader, on the
    reader's host when it came and was seen. Times of two machines may differ as their clocks do. What the relay has
    pruned is looked up in the lake of this host, where there is one.

    For example:

        posthouse trace 01JQ8Z5N0000000000000000AB
        posthouse trace 643b6dcfe2204e80670cf8585ec25134e303c68d3efdfb2d0efc7f5668bc739e --json
    """
    with near.client() as daemon:
        value = follow(daemon, id)
    rows = [(each["at"] or "-", _since(each["after_ms"]), each["where"], each["what"]) for each in value["steps"]]
    output.answer(value, table(("at", "after", "where", "what"), rows))
    if value["relay_error"]:
        output.note(f"what the relay knows is missing: {value['relay_error']}")


def follow(daemon: DaemonClient, key: str) -> dict[str, Any]:
    """Gather what this host and its relay know of a message."""
    import msgspec

    from posthouse.cli.trace.bus import bus_steps
    from posthouse.cli.trace.memory import remembered
    from posthouse.cli.trace.steps import in_order, inbox_steps, outbox_steps, relay_steps

    item = _item(daemon, key)
    message_id = key if item is None else item.message_id
    found = _message(daemon, message_id, is_needed=item is None)
    row, relay = found["outbox"], found["relay"]
    if relay is None or not relay["history_available"]:
        relay = remembered(message_id if row is None else row["message_id"], relay)
    if item is None and row is not None:
        item = _item(daemon, row["message_id"])  # a message to itself
    steps: list[Step] = []
    if row is not None:
        steps += outbox_steps(row)
    if relay is not None:
        steps += relay_steps(relay, _names(daemon))
    if item is not None:
        steps += inbox_steps(msgspec.structs.asdict(item))
    event_id = row["message_id"] if row is not None else relay["id"] if relay is not None else message_id
    steps += bus_steps(event_id, None if row is None else row["client_message_id"], daemon.health().mesh)
    client_id = row["client_message_id"] if row is not None else None if item is None else item.client_message_id
    return {
        "message_id": event_id,
        "client_message_id": client_id,
        "steps": in_order(steps),
        "relay_error": found.get("relay_error"),
    }


def _item(daemon: DaemonClient, key: str) -> InboxItem | None:
    try:
        return daemon.item(key)
    except PosthouseError as failure:
        if failure.code != "inbox_item_unknown":
            raise
        return None


def _message(daemon: DaemonClient, message_id: str, *, is_needed: bool) -> dict[str, Any]:
    try:
        return daemon.message(message_id)
    except PosthouseError as failure:
        if is_needed and not _is_remembered(message_id, failure):
            raise
        return {"outbox": None, "relay": None, "relay_error": failure.code}


def _is_remembered(message_id: str, failure: PosthouseError) -> bool:
    from posthouse.cli.trace.memory import remembered

    return failure.code == "message_unknown" and remembered(message_id, None) is not None


def _names(daemon: DaemonClient) -> dict[str, str]:
    return {each["node"]: each["name"] for each in daemon.peers()["peers"] if each.get("name")}


def _since(after_ms: float | None) -> str:
    return "" if after_ms is None else f"+{after_ms:.1f} ms"
