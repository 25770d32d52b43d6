"""`posthouse history`: messages of a topic or with a member, from the relay and, where it has pruned, from the lake.

A page of the relay is joined by seq with what the lake has of the same range. From the first page that needed the
lake on, pages come from the lake alone, which holds everything that was ever pruned; their cursor is lake:SEQ. A
host without a lake, or without the library that reads one, has the relay's history only.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.config import load_settings
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from posthouse.client.daemon import DaemonClient
    from posthouse.model.event import Event
    from posthouse.pipeline.lake.lookup import Lookup


def find_lake() -> Lookup | None:
    """Return the lake that the settings name, if there is one with the history of anything."""
    path = Path(str(load_settings()["pipeline.lake"].value)).expanduser()
    tables = ("bronze_epochs", "bronze_journal", "bronze_events")
    if not all((path / table / "_delta_log").is_dir() for table in tables) or find_spec("deltalake") is None:
        return None
    from posthouse.pipeline.lake import Lake
    from posthouse.pipeline.lake.lookup import Lookup

    return Lookup(Lake(path))


_LAKE_CURSOR = "lake:"


def history_page(daemon: DaemonClient, of: str, before: str | None, limit: int) -> dict[str, Any]:
    """Return a page of messages, from the relay and, for what it has no more, from the lake."""
    if before is not None and before.startswith(_LAKE_CURSOR):
        memory = find_lake()
        if memory is None:
            raise error("usage", text=f"{before!r} is a place in a lake, and there is none here", hint="Leave it out.")
        return _page(list(islice(_messages_in_lake(daemon, memory, of, _seq(before), 0), limit)), limit)
    is_topic = of.startswith("#")
    answer = daemon.history(
        topic=of.removeprefix("#") if is_topic else None, member=None if is_topic else of, before=before, limit=limit
    )
    memory = find_lake()
    return answer if memory is None else _join(daemon, memory, of, answer, before, limit)


def _join(
    daemon: DaemonClient, memory: Lookup, of: str, answer: dict[str, Any], before: str | None, limit: int
) -> dict[str, Any]:
    shown: list[dict[str, Any]] = answer["messages"]
    known = {message["message_id"] for message in shown}
    # beyond the first page only what lies between its messages: what is newer was on the page before
    newest = shown[0]["history_id"] if before is not None and shown else None
    oldest = shown[-1]["history_id"] if answer["before"] and shown else 0
    missing = (
        each for each in _messages_in_lake(daemon, memory, of, newest, oldest) if each["message_id"] not in known
    )
    extra = list(islice(missing, limit + 1))
    if not extra:
        return answer
    joined = sorted([*shown, *extra], key=lambda message: -int(message["history_id"]))
    return _page(joined[:limit], limit)


def _page(messages: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    is_more = len(messages) == limit
    return {"messages": messages, "before": f"{_LAKE_CURSOR}{messages[-1]['history_id']}" if is_more else None}


def _messages_in_lake(
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
    from posthouse.model.message import history_item

    body, undecryptable = _opened(event, own)
    return history_item(seq, event, names.get(event.pubkey), body, undecryptable)


def _opened(event: Event, own: str) -> tuple[str | None, str | None]:
    """Return the body, or why it cannot be opened with the key of this user."""
    if event.value("enc") is None:
        return event.content, None
    from posthouse.cli.options import load_key
    from posthouse.client.trust.signing import open_content

    try:
        key = load_key(None)
        return (open_content(key, event), None) if key.node == own else (None, "sealed_unopened")
    except PosthouseError as failure:
        return None, failure.code


def _seq(before: str) -> int:
    text = before.removeprefix(_LAKE_CURSOR)
    if not text.isdecimal():
        raise error("usage", text=f"{before!r} is no place", hint="Give what a former answer told.")
    return int(text)


def history(
    of: Annotated[str, Parameter(help="#topic, or a member (name or node id).")],
    /,
    *,
    before: Annotated[str | None, Parameter(help="Older than this place; a former answer tells it.")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="How many at most.")] = 50,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Show messages of a topic or with a member, newest first.

    What the relay has pruned is looked up in the lake of this host, where there is one.

    For example:

        posthouse history '#builds'
        posthouse history bob --limit 10 --json
    """

    with daemon_options.client() as daemon:
        answer = history_page(daemon, of, before, limit)
    output.result(answer, table(("sent", "from", "text"), [_row(each) for each in answer.get("messages", [])]))
    if answer.get("before"):
        output.note(f"more: --before {answer['before']}")


def _row(message: dict[str, Any]) -> tuple[str, str, str]:
    who = message.get("sender_name") or str(message.get("sender", "")).removeprefix("ed25519:")[:8]
    body = message.get("body")
    return str(message.get("sent_at")), who, "(undecryptable)" if body is None else str(body)
