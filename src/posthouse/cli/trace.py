"""`posthouse trace`: one message through bus, outbox, relay and inbox, with times.

On the bus a message is found by the envelope id in its client_message_id, or by the event id in its payload; only the
newest records are read. Records that the bus or the relay has pruned come from the lake of this host, if there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.bus_top import newest_records
from posthouse.cli.config import load_settings
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.clock import parse_utc
from posthouse.model.errors import PosthouseError
from posthouse.model.event import is_event_id

if TYPE_CHECKING:
    from pathlib import Path

    from posthouse.client.daemon import DaemonClient, InboxItem
    from posthouse.client.daemon.trace_steps import Step
    from posthouse.journal.digest import Record


def states_from_lake(message_id: str, relay: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the delivery states of a message from the lake, or those of the relay if the lake has none."""
    from posthouse.cli.history import find_lake

    lake = find_lake() if is_event_id(message_id) else None
    if lake is None:
        return relay
    return lake.states(message_id, None if relay is None else relay["first_seen_at_ns"]) or relay


def bus_records_from_lake(event_id: str, bus_id: str | None) -> list[Record]:
    """Return the bus records of a message from the lake, empty without a lake."""
    from posthouse.cli.history import find_lake

    lake = find_lake()
    return [] if lake is None else lake.bus_records(event_id, bus_id)


NEWEST = 50_000  # records that are searched: bounds the time on a large journal
_BUS_ID_PREFIX = "bus-"  # the daemon puts it before the envelope id of a message from the bus
_WORDS = {
    "bus.published": "published to",
    "bus.handled": "handled by",
    "bus.failed": "failed at",
    "bus.dead": "dead at",
}


def bus_steps(directory: Path, event_id: str, client_message_id: str | None, mesh: str) -> list[Step]:
    """Return the steps of a message on the bus in a directory, empty if the bus has no record of it."""
    path = directory / "bus.db"
    if not path.exists():
        return []
    own_id = client_message_id or ""
    refs: set[str | None] = {own_id.removeprefix(_BUS_ID_PREFIX)} if own_id.startswith(_BUS_ID_PREFIX) else set()
    found = _steps(list(newest_records(path, NEWEST))[::-1], set(refs), event_id, mesh)
    if found:
        return found

    bus_id = next(iter(refs), None)
    return _steps(bus_records_from_lake(event_id, bus_id), refs, event_id, mesh)


def _steps(records: list[Record], refs: set[str | None], event_id: str, mesh: str) -> list[Step]:
    from posthouse.client.daemon.trace_steps import Step

    found: list[Step] = []
    for record in records:
        if record.type == "bus.published" and _event_id(record, mesh) == event_id:
            refs.add(record.ref)
    for record in records:
        if record.ref in refs and record.type in _WORDS:
            found.append(Step("bus", f"{_WORDS[record.type]} {record.decoded_body().get('endpoint')}", record.at_ns))
    return found


def _event_id(record: Record, mesh: str) -> str | None:
    """Return the event id of a message that the daemon bridged from the mesh, else None."""
    if not (record.actor or "").startswith(f"mesh.{mesh}.member."):
        return None
    envelope: Any = record.decoded_body().get("envelope")
    payload = envelope.get("payload") if isinstance(envelope, dict) else None
    data = payload.get("platformData") if isinstance(payload, dict) else None
    found = data.get("messageId") if isinstance(data, dict) else None
    return found if isinstance(found, str) else None


def trace(
    id: Annotated[  # noqa: A002 - the word of the API
        str, Parameter(help="Event id, client_message_id, outbox id or inbox id of the message.")
    ],
    /,
    *,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Follow one message through the bus and the outbox of its host, the relay and the inbox of this host.

    The sender's host shows the steps to the relay and the outcome for each recipient; the recipient's host shows when
    the message arrived and was seen. Clocks of different machines may differ. Steps that the relay has pruned come from
    the lake of this host, if there is one.

    For example:

        posthouse trace 01JQ8Z5N0000000000000000AB
        posthouse trace 643b...739e --json
    """
    with daemon_options.client() as daemon:
        value = gather_steps(daemon, id)
    rows = [(each["at"] or "-", _since(each["after_ms"]), each["where"], each["what"]) for each in value["steps"]]
    output.result(value, table(("at", "after", "where", "what"), rows))
    if value["state"]:
        output.note(f"state: {shown_state(value['state'], value['has_receipts'])}")
    if value["relay_error"]:
        output.note(f"the steps of the relay are missing: {value['relay_error']}")


def gather_steps(daemon: DaemonClient, key: str) -> dict[str, Any]:
    """Return all steps of a message that this host and its relay have recorded."""
    import msgspec

    from posthouse.client.daemon.trace_steps import Step, in_order, inbox_steps, outbox_steps, relay_steps

    item = _item(daemon, key)
    message_id = key if item is None else item.message_id
    found = _message(daemon, message_id, is_required=item is None)
    row, relay = found["outbox"], found["relay"]
    if relay is None or not relay["history_available"]:
        relay = states_from_lake(message_id if row is None else row["message_id"], relay)
    if item is None and row is not None:
        item = _item(daemon, row["message_id"])  # the message was sent to this host itself
    steps: list[Step] = []
    if row is not None:
        steps += outbox_steps(row)
    if relay is not None:
        steps += relay_steps(relay, _names(daemon))
    if item is not None:
        steps += inbox_steps(msgspec.structs.asdict(item))
    event_id = row["message_id"] if row is not None else relay["id"] if relay is not None else message_id
    sent_as = None if row is None else row["client_message_id"]
    steps += bus_steps(load_settings().path("bus.dir"), event_id, sent_as, daemon.health().mesh)
    client_id = row["client_message_id"] if row is not None else None if item is None else item.client_message_id
    if found.get("answered_at"):
        steps.append(Step("inbox", "answered", parse_utc(found["answered_at"])))
    return {
        "message_id": event_id,
        "client_message_id": client_id,
        "state": found.get("state"),
        "has_receipts": found.get("has_receipts"),
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


def _message(daemon: DaemonClient, message_id: str, *, is_required: bool) -> dict[str, Any]:
    try:
        return daemon.message(message_id)
    except PosthouseError as failure:
        if is_required and not _is_in_lake(message_id, failure):
            raise
        return {"outbox": None, "relay": None, "relay_error": failure.code}


def _is_in_lake(message_id: str, failure: PosthouseError) -> bool:
    return failure.code == "message_unknown" and states_from_lake(message_id, None) is not None


def _names(daemon: DaemonClient) -> dict[str, str]:
    return {each["node"]: each["name"] for each in daemon.peers()["peers"] if each.get("name")}


def shown_state(state: str, has_receipts: bool | None) -> str:
    """Return the state of a message; a recipient without receipts never gets beyond `confirmed`."""
    return "confirmed (no receipts)" if state == "confirmed" and has_receipts is False else state


def _since(after_ms: float | None) -> str:
    return "" if after_ms is None else f"+{after_ms:.1f} ms"
