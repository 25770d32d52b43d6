"""History beyond what a relay still has: its pages, filled up from the lake of this host.

The relay's answer is newest first; what it pruned lies between and below. A page is joined with what the lake has of
the same range, by seq. From where the lake had to help, the next page comes from the lake alone, which holds everything
that was ever pruned and what was kept beside it: its place is told as lake:SEQ.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from posthouse.cli.memory import find_memory
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from posthouse.client.daemon import DaemonClient
    from posthouse.model.event import Event
    from posthouse.pipeline.archive import Lookup

_PLACE = "lake:"


def complete(daemon: DaemonClient, of: str, before: str | None, limit: int) -> dict[str, Any]:
    """Return a page of messages, from the relay and, for what it has no more, from the lake."""
    if before is not None and before.startswith(_PLACE):
        memory = find_memory()
        if memory is None:
            raise error("usage", text=f"{before!r} is a place in a lake, and there is none here", hint="Leave it out.")
        return _page(list(islice(_remembered(daemon, memory, of, _seq(before), 0), limit)), limit)
    is_topic = of.startswith("#")
    answer = daemon.history(
        topic=of.removeprefix("#") if is_topic else None, member=None if is_topic else of, before=before, limit=limit
    )
    memory = find_memory()
    return answer if memory is None else _join(daemon, memory, of, answer, before, limit)


def _join(
    daemon: DaemonClient, memory: Lookup, of: str, answer: dict[str, Any], before: str | None, limit: int
) -> dict[str, Any]:
    shown: list[dict[str, Any]] = answer["messages"]
    known = {message["message_id"] for message in shown}
    # beyond the first page only what lies between its messages: what is newer was on the page before
    newest = shown[0]["history_id"] if before is not None and shown else None
    oldest = shown[-1]["history_id"] if answer["before"] and shown else 0
    missing = (each for each in _remembered(daemon, memory, of, newest, oldest) if each["message_id"] not in known)
    extra = list(islice(missing, limit + 1))
    if not extra:
        return answer
    joined = sorted([*shown, *extra], key=lambda message: -int(message["history_id"]))
    return _page(joined[:limit], limit)


def _page(messages: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    is_more = len(messages) == limit
    return {"messages": messages, "before": f"{_PLACE}{messages[-1]['history_id']}" if is_more else None}


def _remembered(
    daemon: DaemonClient, memory: Lookup, of: str, before_seq: int | None, after_seq: int
) -> Iterator[dict[str, Any]]:
    health = daemon.health()
    names = {each["node"]: each["name"] for each in daemon.peers()["peers"] if each.get("name")}
    is_wanted, text = _wanted(of, health.node, names)
    for seq, event in memory.messages(health.mesh, is_wanted, text, before_seq=before_seq, after_seq=after_seq):
        yield _shown(seq, event, names, health.node)


def _wanted(of: str, own: str, names: dict[str, str]) -> tuple[Callable[[Event], bool], str]:
    """Return what tells a wanted message, and a text that its JSON has."""
    if of.startswith("#"):
        topic = of.removeprefix("#")
        return (lambda event: event.value("t") == topic), topic
    by_name = {name: node for node, name in names.items()}
    other = by_name.get(of, of)
    pair = {own, other}
    return (lambda event: event.value("p") in pair and event.pubkey in pair), other


def _shown(seq: int, event: Event, names: dict[str, str], own: str) -> dict[str, Any]:
    from posthouse.model.history_item import history_item

    body, undecryptable = _opened(event, own)
    return history_item(seq, event, names.get(event.pubkey), body, undecryptable)


def _opened(event: Event, own: str) -> tuple[str | None, str | None]:
    """Return the body, or why it cannot be opened with the key of this user."""
    if event.value("enc") is None:
        return event.content, None
    from posthouse.cli.identity import load_key
    from posthouse.client.sealing import open_content

    try:
        key = load_key(None)
        return (open_content(key, event), None) if key.node == own else (None, "sealed_unopened")
    except PosthouseError as failure:
        return None, failure.code


def _seq(before: str) -> int:
    text = before.removeprefix(_PLACE)
    if not text.isdecimal():
        raise error("usage", text=f"{before!r} is no place", hint="Give what a former answer told.")
    return int(text)
