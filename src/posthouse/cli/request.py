"""`posthouse request`: send a message and wait for the answer, through the daemon if one answers.

Partial answers are printed as they arrive, then the final one. Exit code 3 means that no responder is connected, that
it is busy, or that no answer came in time; 1 that the responder could not do it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from posthouse.cli.completers import complete_meshes, complete_recipients
from posthouse.cli.options import DEFAULT_RELAY, ActingAgent, DaemonOptions, RelayOptions, parse_wait
from posthouse.cli.output import PLAIN, Output, shown_body
from posthouse.cli.send import Text, as_daemon, has_daemon, read_message, refuse_without_daemon

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.model.message_api import Answer

_GROUP = Group("Request", sort_key=3)
_SWITCH = Parameter(negative=(), show_default=False)


def request(
    to: Annotated[
        str,
        Parameter(completer=complete_recipients, help="An agent (claude@laptop), a host (name or node id), or #topic."),
    ],
    message: Text,
    /,
    *,
    timeout: Annotated[
        str, Parameter(group=_GROUP, help="How long to wait, at most 1h. A responder that connects later gets nothing.")
    ] = "60s",
    queue: Annotated[
        bool, _SWITCH, Parameter(group=_GROUP, help="Let the request wait for a responder that is not connected.")
    ] = False,
    client_message_id: Annotated[
        str | None,
        Parameter(
            name="--id", group=_GROUP, help="Your own id: a retry with the same id and message is the same request."
        ),
    ] = None,
    mesh: Annotated[
        str | None,
        Parameter(completer=complete_meshes, help="Mesh to use. Default: the one chosen with `posthouse use`."),
    ] = None,
    directory: Annotated[Path | None, Parameter(name="--dir", help="Directory of the daemon.")] = None,
    agent: ActingAgent = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Send a message and wait for the answer.

    For example:

        posthouse request claude@laptop "does main build?" --timeout 5m
        posthouse request bob "are you there?" --timeout 10s --json
        git diff | posthouse request reviewer@desk - --queue --timeout 1h
    """
    timeout_s, text = parse_wait(timeout), read_message(message)
    options: dict[str, Any] = {"queue": queue, "client_message_id": client_message_id}

    def on_answer(answer: Answer) -> None:
        output.result(answer, shown_body(answer.body))

    daemon_options = DaemonOptions(mesh=mesh, directory=directory, agent=agent)
    if has_daemon(daemon_options):
        with daemon_options.client() as daemon:
            on_answer(daemon.request(to, text, timeout_s, on_partial=on_answer, **options))
        return
    refuse_without_daemon(to, daemon_options, relay_options)
    output.note("no daemon runs; connecting to the relay")

    async def work(client: Client) -> Answer:
        return await client.request(to, text, timeout_s, on_partial=on_answer, **options)

    on_answer(as_daemon(daemon_options, relay_options).run(daemon_options.chosen_mesh(), work))
