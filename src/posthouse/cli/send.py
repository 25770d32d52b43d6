"""`posthouse send`: a message to a member or a topic, through the daemon if one answers.

The daemon is asked first, within 100 ms. Without one this process connects to the relay itself, as the daemon's node if
the daemon has a key here, else as this user's, and says so. Once a daemon has answered, nothing is sent around it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.message_options import NO_FLAGS, MessageFlags, Text, read_text
from posthouse.cli.near import Near
from posthouse.cli.reach import DEFAULT_REACH, MeshName, Reach
from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from posthouse.client import Client, Sent

PROBE_S = 0.1


def send(
    to: Annotated[str, Parameter(help="A member (name, node id, or at least 8 of its digits), or #topic.")],
    message: Text,
    /,
    *,
    flags: MessageFlags = NO_FLAGS,
    mesh: MeshName = "main",
    directory: Annotated[Path | None, Parameter(name="--dir", help="Directory of the daemon.")] = None,
    reach: Reach = DEFAULT_REACH,
    output: Output = PLAIN,
) -> None:
    """Send a message; done when the daemon, or without one the relay, has it on its disk.

    For example:

        posthouse send bob "the build is green"
        posthouse send '#builds' "main is green" --priority now --json
        git log -1 | posthouse send bob - --id "commit-$(git rev-parse HEAD)"
    """
    options = flags.given()
    text = read_text(message)
    near = Near(mesh=mesh, directory=directory)
    why_not = _why_no_daemon(near)
    if why_not is None:
        with near.client() as daemon:
            accepted = daemon.send(to, text, **options)
        value = {"via": "daemon", **_values(accepted)}
        output.answer(value, f"{accepted.client_message_id}  {accepted.status}")
        return
    output.note(f"no daemon ({why_not}); connecting to the relay")
    sent = _send_alone(to, text, flags, near, reach)
    state = "was there already" if sent.duplicate else "stored by the relay"
    output.answer(_value_of_sent(sent), f"{sent.client_message_id}  {state}  {sent.id}")


def _why_no_daemon(near: Near) -> str | None:
    """Return why there is no daemon to use, or None when one answers."""
    try:
        with near.client(PROBE_S) as daemon:
            daemon.version()
    except PosthouseError as failure:
        if failure.code != "daemon_unreachable":
            raise
        return str(failure.fields.get("reason"))
    return None


def _send_alone(to: str, text: str, flags: MessageFlags, near: Near, reach: Reach) -> Sent:
    from dataclasses import replace

    from posthouse.cli.daemon.terms import noted_relay

    directory = near.place().directory
    daemon_key = directory / "keypair.json"
    if reach.key_file is None and daemon_key.exists():
        reach = replace(reach, key_file=daemon_key)
    if reach.relay is None:
        reach = replace(reach, relay=noted_relay(directory))

    async def work(client: Client) -> Sent:
        return await client.send(
            to,
            text,
            client_message_id=flags.client_message_id,
            reply_to=flags.reply_to,
            priority=flags.priority,
            meta=flags.parsed_meta(),
            mentions=[await client.meshes.resolve(member, near.mesh or client.mesh) for member in flags.mention],
        )

    return reach.visit(near.mesh, work)


def _value_of_sent(sent: Sent) -> dict[str, Any]:
    return {
        "via": "relay",
        "client_message_id": sent.client_message_id,
        "status": "done",
        "duplicate": sent.duplicate,
        "broker_message_id": sent.id,
        "history_id": sent.seq,
        "not_queued": [{"recipient": each.recipient, "reason": each.reason} for each in sent.not_queued],
    }


def _values(answer: Any) -> dict[str, Any]:
    import msgspec

    values: dict[str, Any] = msgspec.to_builtins(answer)
    return values
