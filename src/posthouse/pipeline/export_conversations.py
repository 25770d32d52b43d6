"""Export conversations for evaluations and fine-tuning, as JSON lines or Parquet, redacted by rules.

A conversation is the messages that name it, or that reply to each other. The export reads bronze without Spark and
keeps the chosen messages in memory. Sealed text is left out: only its readers can open it. An export is reproducible:
its manifest holds the positions of the lake (epoch -> last seq) and the rules, and an export at the same positions with
the same rules has the same bytes, however the lake has grown, been compacted or restored since. Rules apply to the
exported text, not to the lake.
"""

from __future__ import annotations

import hashlib
import io
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from posthouse.files import write_atomic
from posthouse.model.clock import format_utc
from posthouse.model.errors import error
from posthouse.model.event import MESSAGE
from posthouse.pipeline.epochs import ALL_LOST, live_through
from posthouse.pipeline.lake.lake import BronzeScan, Lake, RowFilter
from posthouse.pipeline.tables.bronze import COPIES, application_id

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("jsonl", "parquet")
#: Fields of a message that a rule may drop.
FIELDS = ("id", "at", "sender", "recipient", "reply_to", "text", "model", "meta")
Positions = dict[str, int]


class Replacement(msgspec.Struct, forbid_unknown_fields=True, rename={"by": "with"}):
    """A regular expression, and the text that replaces what it matches."""

    pattern: str
    by: str = "[redacted]"


class RedactionRules(msgspec.Struct, forbid_unknown_fields=True):
    """The fields that an export leaves out, and the regular expressions whose matches it replaces."""

    drop: list[str] = []
    replace: list[Replacement] = []


_RULES_HINT = (
    'Write drop = ["FIELD"], and for each replacement a table [[replace]] with pattern = "REGEX" and with = "TEXT".'
)


def parse_rules(text: str, path: str = "rules.toml") -> RedactionRules:
    """Read redaction rules in TOML, or raise config_unreadable."""
    try:
        rules = msgspec.convert(tomllib.loads(text), RedactionRules)
        for each in rules.replace:
            re.compile(each.pattern).sub(each.by, "")  # this also checks the group references in `with`
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, re.error, IndexError) as fault:
        raise error("config_unreadable", path=path, reason=str(fault), hint=_RULES_HINT) from fault
    if unknown := set(rules.drop) - set(FIELDS):
        reason = f"there is no field {', '.join(sorted(unknown))}; fields are {', '.join(FIELDS)}"
        raise error("config_unreadable", path=path, reason=reason, hint=_RULES_HINT)
    return rules


class Manifest(msgspec.Struct):
    """The inputs of an export, its size, and the digest of its file."""

    positions: Positions
    rules: RedactionRules
    format: str
    conversations: int = 0
    messages: int = 0
    sealed: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class ExportedMessage:
    """One message of an export."""

    source: str
    mesh: str
    id: str
    at_ns: int
    sender: str
    recipient: str
    reply_to: str | None
    conversation_id: str | None
    #: None: sealed
    text: str | None
    model: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


def positions_of(lake: Lake) -> Positions:
    """Return the last live seq of each epoch: the last one in the lake, or the fork of a restore."""
    epochs = lake.epochs()
    live = live_through(epochs)
    tables = [(lake.delta(name), feed.name) for name, feed in COPIES.items()]
    found: Positions = {}
    for epoch in sorted(each.epoch for each in epochs):
        read = [delta.app_version(application_id(epoch, feed)) for delta, feed in tables]
        through = min((seq for seq in read if seq is not None), default=0)  # a killed run may have copied one feed only
        found[epoch] = min(through, live.get(epoch, ALL_LOST))
    return found


def export_conversations(
    lake: Lake, to: Path, kind: str, rules: RedactionRules, positions: Positions | None = None
) -> Manifest:
    """Write an export and, next to it, its manifest; return the manifest."""
    manifest = Manifest(positions_of(lake) if positions is None else positions, rules, kind)
    grouped = group_messages(read_messages(lake, manifest.positions))
    rows = [
        (redact_name(name, messages, rules), [redact(each, rules) for each in messages]) for name, messages in grouped
    ]
    data = _jsonl(rows) if kind == "jsonl" else _parquet(rows)
    manifest.conversations, manifest.messages = len(rows), sum(len(messages) for _, messages in rows)
    manifest.sealed = sum(each.text is None for _, messages in grouped for each in messages)
    manifest.sha256 = hashlib.sha256(data).hexdigest()
    write_atomic(to, data)
    write_atomic(manifest_path(to), msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return manifest


_MANIFEST_HINT = "Name the manifest that an export wrote beside its file: NAME.jsonl.manifest.json."


def manifest_path(to: Path) -> Path:
    """Return the path of the manifest of an export."""
    return to.with_name(f"{to.name}.manifest.json")


def parse_manifest(content: bytes, path: str) -> Manifest:
    """Read a manifest, or raise config_unreadable."""
    try:
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as failure:
        raise error("config_unreadable", path=path, reason=str(failure), hint=_MANIFEST_HINT) from failure


def read_messages(lake: Lake, positions: Positions) -> Iterator[ExportedMessage]:
    """Yield the messages of relays and buses within the positions."""
    import pyarrow.compute as pc

    events = RowFilter(where=(pc.field("kind") == MESSAGE) & pc.field("event").is_valid())
    for row in _within(lake, "bronze_events", events, ("epoch", "seq", "at_ns", "mesh", "event"), positions):
        yield message_of_event(row)
    published = RowFilter(where=pc.field("type") == "bus.published")
    seen: set[str] = set()
    for row in _within(lake, "bronze_journal", published, ("epoch", "seq", "at_ns", "ref", "body"), positions):
        if row["ref"] not in seen:  # a message to several endpoints has a record for each
            seen.add(row["ref"])
            yield message_of_envelope(row)


def _within(
    lake: Lake, table: str, choice: RowFilter, columns: Sequence[str], positions: Positions
) -> Iterator[dict[str, Any]]:
    for part in BronzeScan(lake, table).batches(choice, columns):
        for row in part.to_pylist():
            if row["seq"] <= positions.get(row["epoch"], 0):
                yield row


def message_of_event(row: Mapping[str, Any]) -> ExportedMessage:
    """Return the message in a row of bronze_events."""
    event = msgspec.json.decode(row["event"])
    tags: dict[str, str] = {tag[0]: tag[1] for tag in reversed(event["tags"]) if len(tag) > 1}
    meta = msgspec.json.decode(tags["meta"]) if tags.get("meta") else {}
    usage = meta.get("usage") if isinstance(meta, dict) else None
    recipient = f"#{tags['t']}" if "t" in tags else tags.get("p", "")
    return ExportedMessage(
        source="relay",
        mesh=row["mesh"] or "",
        id=event["id"],
        at_ns=row["at_ns"],
        sender=f"{event['pubkey']}/{tags['from']}" if tags.get("from") else event["pubkey"],
        recipient=f"{recipient}/{tags['to']}" if tags.get("to") else recipient,
        reply_to=tags.get("e"),
        conversation_id=_name_of(meta.get("conversation_id") or meta.get("conversationId"))
        if isinstance(meta, dict)
        else None,
        text=None if tags.get("enc") else event["content"],
        model=_model_of(usage),
        meta=meta if isinstance(meta, dict) else {},
    )


def message_of_envelope(row: Mapping[str, Any]) -> ExportedMessage:
    """Return the message in a bus.published record of bronze_journal."""
    body = msgspec.json.decode(row["body"])
    envelope = body["envelope"]
    payload = envelope.get("payload")
    fields: dict[str, Any] = payload if isinstance(payload, dict) else {}
    content = fields.get("content")
    usage = fields.get("usage")
    return ExportedMessage(
        source="bus",
        mesh="",
        id=row["ref"],
        at_ns=row["at_ns"],
        sender=envelope.get("from", ""),
        recipient=body.get("published_to") or body["endpoint"],
        reply_to=_name_of(fields.get("correlationId")),
        conversation_id=_name_of(fields.get("conversationId")),
        text=content if isinstance(content, str) else msgspec.json.encode(payload).decode(),
        model=_model_of(usage),
    )


def _name_of(value: object) -> str | None:
    """Return a name as text, as silver_messages stores it; a sender may give any JSON value."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _model_of(usage: object) -> str | None:
    model = usage.get("model") if isinstance(usage, dict) else None
    return model if isinstance(model, str) else None


def group_messages(messages: Iterator[ExportedMessage]) -> list[tuple[str, list[ExportedMessage]]]:
    """Return messages by conversation, each oldest first, with the same grouping as silver_conversations."""
    known = {(each.source, each.mesh, each.id): each for each in messages}
    found: dict[tuple[str, str, str], list[ExportedMessage]] = {}
    for each in known.values():
        found.setdefault((each.source, each.mesh, _conversation(each, known)), []).append(each)
    for group in found.values():
        group.sort(key=lambda each: (each.at_ns, each.id))
    return [(key[2], group) for key, group in sorted(found.items(), key=lambda item: item[0])]


def _conversation(message: ExportedMessage, known: Mapping[tuple[str, str, str], ExportedMessage]) -> str:
    """Follow replies up to a message that names a conversation or replies to none; a circle has its smallest id."""
    seen: set[str] = set()
    while True:
        if message.conversation_id:
            return message.conversation_id
        above = known.get((message.source, message.mesh, message.reply_to or ""))
        if above is None:
            return message.reply_to or message.id
        if above.id in seen:
            return min(seen)
        seen.add(above.id)
        message = above


def redact(message: ExportedMessage, rules: RedactionRules) -> dict[str, Any]:
    """Return the fields of a message as an export writes them."""
    shown: dict[str, Any] = {
        "id": message.id,
        "at": format_utc(message.at_ns),
        "sender": message.sender,
        "recipient": message.recipient,
        "reply_to": message.reply_to,
        "text": message.text,
        "model": message.model,
        "meta": dict(message.meta) or None,
    }
    patterns = _patterns(rules)
    found = {
        name: value if name in _IDS else _replaced(value, patterns)
        for name, value in shown.items()
        if name not in rules.drop
    }
    return found | {"is_sealed": message.text is None}


def redact_name(name: str, messages: Sequence[ExportedMessage], rules: RedactionRules) -> str:
    """Return the name of a conversation as an export writes it; the id of its first message stays as it is."""
    is_chosen = any(each.conversation_id == name for each in messages)
    redacted: str = _replaced(name, _patterns(rules)) if is_chosen else name
    return redacted


#: Fields that replacements do not change: the ids by which messages refer to each other, and the time.
_IDS = ("id", "at", "reply_to")
_Patterns = Sequence[tuple[re.Pattern[str], str]]


def _patterns(rules: RedactionRules) -> _Patterns:
    return [(re.compile(each.pattern), each.by) for each in rules.replace]


def _replaced(value: Any, patterns: _Patterns) -> Any:
    """Replace the matches of patterns in a text, or in every text inside a value, names of fields included."""
    if isinstance(value, dict):
        return {_replaced(key, patterns): _replaced(each, patterns) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, patterns) for each in value]
    if isinstance(value, str):
        for pattern, by in patterns:
            value = pattern.sub(by, value)
    return value


_Conversations = Sequence[tuple[str, list[dict[str, Any]]]]


def _jsonl(rows: _Conversations) -> bytes:
    lines = [msgspec.json.encode({"conversation": name, "messages": messages}) for name, messages in rows]
    return b"".join(line + b"\n" for line in lines)


def _parquet(rows: _Conversations) -> bytes:
    import pyarrow.parquet as pq

    found: dict[str, list[Any]] = {name: [] for name in ("conversation", "position", *FIELDS, "is_sealed")}
    for name, messages in rows:
        for position, message in enumerate(messages):
            flat = message | {"conversation": name, "position": position}
            if flat.get("meta") is not None:
                flat["meta"] = msgspec.json.encode(flat["meta"], order="sorted").decode()
            for column, values in found.items():
                values.append(flat.get(column))
    target = io.BytesIO()
    pq.write_table(_table(found), target)
    return target.getvalue()


def _table(columns: Mapping[str, list[Any]]) -> pa.Table:
    import pyarrow as pa

    kinds = {"position": pa.int64(), "is_sealed": pa.bool_()}
    return pa.table({name: pa.array(values, kinds.get(name, pa.string())) for name, values in columns.items()})
