"""How an event is shown: to programs as it is on the wire, to people with its content opened if it is theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.model.event import Event


def event_value(client: Client, event: Event, seq: int | None, **more: Any) -> dict[str, Any]:
    """Return an event for programs: its fields and seq, and `plaintext` when it was sealed for this node."""
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(event) | {"seq": seq} | more
    plaintext = opened(client, event)
    return value if plaintext is None else value | {"plaintext": plaintext}


def event_lines(client: Client, event: Event, seq: int | None) -> str:
    """Return an event for people."""
    tags = [" ".join(tag) for tag in event.tags]
    lines = [
        f"id       {event.id}",
        f"seq      {'-' if seq is None else seq}",
        f"author   {event.pubkey}",
        f"created  {created(event)}",
        f"kind     {event.kind}",
        *(f"tag      {tag}" for tag in tags),
        f"content  {content(client, event)}",
    ]
    return "\n".join(lines)


def event_row(client: Client, event: Event, seq: int | None) -> tuple[str, ...]:
    """Return an event as a row of a table."""
    author = event.pubkey.removeprefix("ed25519:")[:8]
    return ("-" if seq is None else str(seq), created(event), author, str(event.kind), content(client, event))


def created(event: Event) -> str:
    """Return when an event says it was made."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(event.created_at_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def content(client: Client, event: Event) -> str:
    """Return the content for people: opened, or a word about why not."""
    if event.tag("enc") is None:
        return event.content
    plaintext = opened(client, event)
    return f"({len(event.content)} characters sealed for others)" if plaintext is None else plaintext


def opened(client: Client, event: Event) -> str | None:
    """Return the plaintext of a sealed event, or None when it is in the clear or not for this node."""
    if event.tag("enc") is None:
        return None
    try:
        return client.open(event)
    except PosthouseError:
        return None
