"""The shape of a record type, and the types that a daemon writes: outbox, inbox, agents, hooks.

The rule for changes is in posthouse.journal.records, which lists the types of every store. Daemon records have ids,
sizes and states, never bodies. Loads no SQLite: Spark workers use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RecordType:
    """The shape of one type of record."""

    name: str
    #: The thing that `ref` names.
    ref: str
    #: Body fields and their meaning; a field may be absent unless its text says always.
    body: dict[str, str] = field(default_factory=dict)
    version: int = 1
    #: The body fields that hold text of people and agents, as paths; an erasure empties them.
    content: tuple[str, ...] = ()


#: of changes that a person makes through a program
VIA = {"via": "the program through which a person acted, such as console"}
_ROW = "the outbox row's id"
_CLIENT_ID = {"client_message_id": "the caller's id of the message, always"}
_ACCEPTED_AT_RELAY = {"message_id": "the event id at the relay, always", "history_id": "its seq at the relay, always"}
_RESERVATION = {"agent": "the agent that holds it, empty for a person, always", "paths": "number of paths, always"}
_PAUSE = {"until_ns": "wall time at which the pause ends, always", "set_by": "the agent itself, person or hook; always"}
# Ids, sizes and states, never bodies.
DAEMON = (
    RecordType(
        "outbox.queued",
        _ROW,
        _CLIENT_ID
        | {
            "fingerprint": "hex of the request fingerprint, always",
            "destination": "member or topic, always",
            "size": "bytes of the event, always",
            "from_agent": "the agent that sends it, absent for the host itself",
            "to_agent": "the recipient's agent, absent for its default inbox",
            "local": "true if the recipient is an agent of this host: no relay sees the message",
            "usage": "what a local message reports of model, tokens and cost; of others the event has it",
        }
        | VIA,
    ),
    RecordType("outbox.reopened", "the new epoch of the relay, which was restored", {"ids": "the row ids, always"}),
    RecordType("outbox.inflight", _ROW, {"ids": "all row ids of the frame, always"}),
    RecordType(
        "outbox.deferred",
        _ROW,
        {"attempts": "number of attempts so far, always", "code": "the transient error, always"},
    ),
    RecordType("outbox.done", _ROW, _CLIENT_ID | _ACCEPTED_AT_RELAY),
    RecordType("outbox.confirmed", _ROW, {"at_ns": "when the relay had the first confirmation, always"}),
    RecordType(
        "outbox.receipt",
        _ROW,
        {"state": "read or rejected, always", "at_ns": "when, by the clock of the reader's host, always"},
    ),
    RecordType("outbox.dead", _ROW, _CLIENT_ID | {"code": "the permanent error, or the age limit; always"}),
    RecordType(
        "outbox.aborted",
        _ROW,
        _CLIENT_ID
        | {"aborted_by": "the actor that aborted it, always", "superseded_by": "the row that replaces it"}
        | VIA,
    ),
    RecordType("outbox.pressure", "the outbox", {"bytes": "bytes in use, always", "max_bytes": "the limit, always"}),
    RecordType(
        "inbox.received",
        "the inbox row's id",
        _CLIENT_ID
        | {
            "message_id": "the event id, always",
            "topic": "the topic, absent for a direct message",
            "size": "bytes of the body, always",
            "from_agent": "the sender's agent, absent for its host",
            "agents": "agents whose inboxes got it, absent for the default inbox alone",
            "undecryptable": "true if it could not be decrypted",
            "conflicts_with": "the inbox row of a different message of this sender with the same client_message_id",
        },
    ),
    RecordType(
        "inbox.seen",
        "the id of the last row",
        {"ids": "the inbox rows, always", "agent": "the agent whose inbox it is"},
    ),
    RecordType("inbox.announced", "the agent to which mail was announced", {"count": "number of messages, always"}),
    RecordType(
        "inbox.reopened", "the agent's name", {"count": "number of rows that become unread for its successor, always"}
    ),
    RecordType("inbox.deleted", "the id of the last row", {"count": "number of rows above the retention, always"}),
    RecordType("agent.added", "the agent's name", {"program": "the program that uses it"}),
    RecordType("agent.renamed", "the agent's name", {"to": "the new name, always"}),
    RecordType("agent.on_mail_set", "the agent's name", {"is_set": "False if the command was removed, always"}),
    RecordType(
        "agent.command_run",
        "the agent's name",
        {
            "kind": "on_mail, codex_queue or claude_inbox, always",
            "exit": "exit code; minus the signal that ended it, always",
            "ms": "how long it ran, always",
            "timeout": "True if it was ended after its time limit",
        },
    ),
    RecordType(
        "hook.run",
        "the name of the hook",
        {
            "event_id": "the cursor of the event's record, always",
            "attempt": "1 for the first, always",
            "exit": "exit code; minus the signal that ended it, always",
            "ms": "how long it ran, always",
            "timeout": "True if it was ended after its time limit",
        },
    ),
    RecordType("hook.dropped", "the name of the hook", {"event_ids": "the parked events that were given up, always"}),
    RecordType("uplink.connected", "the relay"),
    RecordType("uplink.lost", "the relay"),
    RecordType("agent.retired", "the agent's name", {"reason": "why it no longer accepts mail, always"}),
    RecordType(
        "reservation.granted", "the reservation's id", _RESERVATION | {"ends_at_ns": "its end at the latest, always"}
    ),
    RecordType(
        "reservation.ended",
        "the reservation's id",
        _RESERVATION | {"reason": "released, forced, expired or program_gone, always"} | VIA,
    ),
    RecordType("agent.paused", "the agent's name", _PAUSE),
    RecordType("agent.resumed", "the agent's name", _PAUSE),
)
# actor is a Pinch address; envelopes are opaque.
