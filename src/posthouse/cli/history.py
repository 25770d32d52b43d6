"""`posthouse history`: messages of a topic or with a member, from the relay and, where it has pruned, from the lake.

A page from the relay is merged by seq with the lake's messages of the same range. After the first page that needed
the lake, pages come from the lake alone, which holds everything that was ever pruned; their cursor is lake:SEQ. A
host without a lake, or without the library that reads one, shows the relay's history only.
"""

from __future__ import annotations

from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from posthouse.cli.completers import complete_recipients
from posthouse.cli.config import load_settings
from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions
from posthouse.cli.output import PLAIN, Output, short_node, shown_body, table
from posthouse.model.address import Address
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from posthouse.client.daemon import DaemonClient
    from posthouse.model.event import Event
    from posthouse.pipeline.lake.lookup import Lookup


def find_lake() -> Lookup | None:
    """Return the lake that the settings name, or None if it is absent, empty or cannot be read here."""
    settings = load_settings()
    location, path = settings.text("pipeline.lake"), settings.path("pipeline.lake")
    if ("://" not in location and not path.is_dir()) or find_spec("deltalake") is None:
        return None  # does not import the pipeline, which takes a moment
    from posthouse.pipeline.lake import Lake
    from posthouse.pipeline.lake.lookup import Lookup

    lake = Lake(location)
    has_history = {"bronze_epochs", "bronze_journal", "bronze_events"} <= set(lake.names())
    return Lookup(lake) if has_history else None


_LAKE_CURSOR = "lake:"


def history_page(daemon: DaemonClient, of: str, before: str | None, limit: int) -> dict[str, Any]:
    """Return a page of messages from the relay, completed from the lake where the relay has pruned."""
    if before is not None and before.startswith(_LAKE_CURSOR):
        lake = find_lake()
        if lake is None:
            raise error(
                "usage",
                text=f"{before!r} is a cursor of a lake, but this host has no lake",
                hint="Run without --before.",
            )
        return _page(list(islice(_messages_in_lake(daemon, lake, of, _seq(before), 0), limit)), limit)
    is_topic = of.startswith("#")
    answer = daemon.history(
        topic=of.removeprefix("#") if is_topic else None, member=None if is_topic else of, before=before, limit=limit
    )
    lake = find_lake()
    is_local = any(each["history_id"] is None for each in answer["messages"])  # between agents of this host
    return answer if lake is None or is_local else _merge(daemon, lake, of, answer, before, limit)


def _merge(
    daemon: DaemonClient, lake: Lookup, of: str, answer: dict[str, Any], before: str | None, limit: int
) -> dict[str, Any]:
    shown: list[dict[str, Any]] = answer["messages"]
    known = {message["message_id"] for message in shown}
    # a later page adds nothing newer than its first message: newer ones were on the previous page
    newest = shown[0]["history_id"] if before is not None and shown else None
    oldest = shown[-1]["history_id"] if answer["before"] and shown else 0
    missing = (each for each in _messages_in_lake(daemon, lake, of, newest, oldest) if each["message_id"] not in known)
    extra = list(islice(missing, limit + 1))
    if not extra:
        return answer
    joined = sorted([*shown, *extra], key=lambda message: -int(message["history_id"]))
    return _page(joined[:limit], limit)


def _page(messages: list[dict[str, Any]], limit: int) -> dict[str, Any]:
    is_more = len(messages) == limit
    return {"messages": messages, "before": f"{_LAKE_CURSOR}{messages[-1]['history_id']}" if is_more else None}


def _messages_in_lake(
    daemon: DaemonClient, lake: Lookup, of: str, before_seq: int | None, after_seq: int
) -> Iterator[dict[str, Any]]:
    from posthouse.model.message import history_item

    health = daemon.health()
    names = {each["node"]: each["name"] for each in daemon.peers()["peers"] if each.get("name")}
    is_wanted, text = _wanted(of, health.node, daemon.agent, names)
    for seq, event in lake.messages(health.mesh, is_wanted, text, before_seq=before_seq, after_seq=after_seq):
        body, undecryptable = _opened(event, health.node, health.mesh)
        yield history_item(seq, event, names.get(event.pubkey), body, undecryptable)


def _wanted(of: str, own: str, agent: str, names: dict[str, str]) -> tuple[Callable[[Event], bool], str]:
    """Return a predicate for the messages of a conversation of `agent`, and a text that their JSON must contain."""
    if of.startswith("#"):
        topic = of.removeprefix("#")
        return (lambda event: event.value("t") == topic), topic
    by_name = {name: node for node, name in names.items()}
    peer, _, host = of.rpartition("@")
    other = by_name.get(host, host)
    pair = {own, other}

    def is_wanted(event: Event) -> bool:
        mine, theirs = ("from", "to") if event.pubkey == own else ("to", "from")
        is_between = event.value("p") in pair and event.pubkey in pair
        return is_between and (not agent or event.value(mine) == agent) and (not peer or event.value(theirs) == peer)

    return is_wanted, other


def _opened(event: Event, own: str, mesh: str) -> tuple[str | None, str | None]:
    """Return the body and None, or None and the error code if this user's key cannot open it."""
    if event.value("enc") is None:
        return event.content, None
    from posthouse.cli.options import load_key
    from posthouse.client.trust.signing import open_content

    try:
        key = load_key(None, mesh)
        return (open_content(key, event), None) if key.node == own else (None, "sealed_unopened")
    except PosthouseError as failure:
        return None, failure.code


def _seq(before: str) -> int:
    text = before.removeprefix(_LAKE_CURSOR)
    if not text.isdecimal():
        raise error("usage", text=f"{before!r} is not a cursor", hint="Use the cursor that the previous page printed.")
    return int(text)


def history(
    of: Annotated[
        str,
        Parameter(
            completer=complete_recipients, help="#topic, a member (name or node id), or an agent (claude@laptop)."
        ),
    ],
    /,
    *,
    before: Annotated[str | None, Parameter(help="Cursor of the previous page: show older messages.")] = None,
    limit: Annotated[int, Parameter(validator=Number(gte=1, lte=500), help="Maximum number to show.")] = 50,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Show messages of a topic or with a member, newest first.

    Messages that the relay has pruned come from the lake of this host, if there is one.

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
    host = message.get("sender_name") or short_node(str(message.get("sender", "")))
    sender = Address(message.get("from_agent") or "", host)
    return str(message.get("sent_at")), str(sender), shown_body(message.get("body"))
