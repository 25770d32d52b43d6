"""`posthouse send`: send to a member or a topic, through the daemon if one answers; and the options of a message.

A daemon that runs gets the message, however slowly it answers: a second connection with its key would displace its own.
Only if none runs does the command connect to the relay itself, with the daemon's key if there is one, else with the
user's key, and prints a note. With --direct it does so at once, with the key that --key-file or the home names.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from posthouse.cli.completers import complete_members, complete_meshes, complete_recipients
from posthouse.cli.direct import WITHOUT_DAEMON, Direct
from posthouse.cli.options import (
    DEFAULT_RELAY,
    ActingAgent,
    DaemonOptions,
    MeshOptions,
    RelayOptions,
    note_membership,
    parse_duration,
    parse_meta,
    read_text,
    with_mesh,
)
from posthouse.cli.output import PLAIN, Output
from posthouse.model.clock import format_utc, parse_utc, system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import is_event_id
from posthouse.model.freshness import with_freshness
from posthouse.model.limits import SECOND_NS

if TYPE_CHECKING:
    from posthouse.client import Client, Sent
    from posthouse.client.daemon import Accepted
    from posthouse.client.daemon.calls import SendOptions


_GROUP = Group("Message", sort_key=3)
_UNTIL_HINT = "Give a time such as 2026-01-31T18:00:00Z, or a duration such as 2h."
_MANY = Parameter(negative=(), show_default=False)
#: The text of a message, as an argument.
Text = Annotated[str, Parameter(allow_leading_hyphen=True, help="The text; `-` reads it from stdin.")]
#: The option of commands that send without a daemon.
Unsealed = Annotated[
    bool, _MANY, Parameter(group=WITHOUT_DAEMON, help="Send a direct message unencrypted; needs --direct.")
]


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class MessageFlags:
    """The options of a message."""

    priority: Annotated[
        Literal["now", "next", "low"] | None, Parameter(help="Urgency shown to the recipient; never reorders messages.")
    ] = None
    meta: Annotated[str | None, Parameter(help="A JSON object sent along unencrypted.")] = None
    reply_to: Annotated[str | None, Parameter(help="Event id of the message this one answers.")] = None
    mention: Annotated[
        tuple[str, ...], _MANY, Parameter(completer=complete_members, help="A member to mention. Repeatable.")
    ] = ()
    client_message_id: Annotated[
        str | None,
        Parameter(name="--id", help="Your own id: a retry with the same id and message is not delivered twice."),
    ] = None
    supersedes: Annotated[
        str | None, Parameter(help="Your earlier message that this one replaces while it is unread.")
    ] = None
    valid_until: Annotated[
        str | None,
        Parameter(
            help="Time (2026-01-31T18:00:00Z), or duration from now (30m, 2h), after which readers see the text only "
            "if they confirm."
        ),
    ] = None
    failure: Annotated[bool, _MANY, Parameter(help="The message only reports a failure: it wakes no agent.")] = False
    answer: Annotated[
        Literal["partial", "final", "busy", "failed"] | None,
        Parameter(help="Kind of answer to the request that --reply-to names. Default: final."),
    ] = None

    def all_meta(self) -> dict[str, Any] | None:
        """Return the meta of a message that is sent without a daemon, completed as a daemon would."""
        if self.supersedes is not None and not is_event_id(self.supersedes):
            hint = "Give the message id, all 64 digits: only a daemon knows your own ids and shortened ids."
            raise error("id_invalid", id=self.supersedes, reason="it is not a message id", hint=hint)
        said = {
            "supersedes": self.supersedes,
            "valid_until": self._valid_until(),
            "failure": self.failure,
            "answer": self.answer,
        }
        return with_freshness(parse_meta(self.meta), said)

    def given(self) -> SendOptions:
        """Return the options as arguments of the daemon client."""
        return {
            "supersedes": self.supersedes,
            "valid_until": self._valid_until(),
            "failure": self.failure or None,
            "answer": self.answer,
            "priority": self.priority,
            "meta": parse_meta(self.meta),
            "reply_to_id": self.reply_to,
            "mentions": list(self.mention) or None,
            "client_message_id": self.client_message_id,
        }

    def _valid_until(self) -> str | None:
        """Return --valid-until as a time."""
        given = self.valid_until
        if given is None:
            return None
        if "-" in given:
            return format_utc(_parse_time(given))
        duration_s = parse_duration(given, hint=_UNTIL_HINT)
        if self.client_message_id is not None:
            hint = "A duration counts from each call, so a retry with the same id would be another message."
            raise error("usage", text="with --id, --valid-until must be a time: 2026-01-31T18:00:00Z", hint=hint)
        return format_utc(system_clock().wall_ns() + round(duration_s * SECOND_NS))


def _parse_time(text: str) -> int:
    try:
        return parse_utc(text)
    except PosthouseError as invalid:
        raise error("usage", text=f"--valid-until: {invalid}", hint=_UNTIL_HINT) from invalid


#: The default of every command's `flags`.
NO_FLAGS = MessageFlags()


_START_S = 10.0  # for a daemon that starts or stops: it holds its lock and has no socket
_POLL_S = 0.05


def send(
    to: Annotated[
        str,
        Parameter(
            completer=complete_recipients,
            help="An agent (claude@laptop, or claude where that is unambiguous), a host (name, node id, or its first 8 "
            "or more digits), or #topic.",
        ),
    ],
    message: Text,
    /,
    *,
    flags: MessageFlags = NO_FLAGS,
    mesh: Annotated[
        str | None,
        Parameter(completer=complete_meshes, help="Mesh to use. Default: the one chosen with `posthouse use`."),
    ] = None,
    directory: Annotated[Path | None, Parameter(name="--dir", help="Directory of the daemon.")] = None,
    agent: ActingAgent = None,
    direct: Direct = False,
    unsealed: Unsealed = False,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Send a message; returns when the daemon, or without a daemon the relay, has it on disk.

    A direct message is sealed for its recipient. With --id a retry is safe: the same message with the same id is
    delivered once.

    For example:

        posthouse send bob "the build is green"
        posthouse send claude@laptop "please review" --agent codex
        posthouse send '#builds' "main is green" --priority now --json
        git log -1 | posthouse send bob - --id "commit-$(git rev-parse HEAD)"
        posthouse send bob "no daemon runs here" --direct --key-file keys/agent.json
    """
    if direct:
        if directory is not None or agent is not None:
            raise error("usage", text="--direct uses no daemon: it excludes --dir and --agent")
        send_direct(to, read_message(message), flags, with_mesh(relay_options, mesh), output, is_sealed=not unsealed)
        return
    if unsealed:
        raise error("usage", text="--unsealed needs --direct: a daemon seals every direct message")
    options = flags.given()
    text = read_message(message)
    daemon_options = DaemonOptions(mesh=mesh, directory=directory, agent=agent)
    if has_daemon(daemon_options):
        with daemon_options.client() as daemon:
            accepted = daemon.send(to, text, **options)
            note_membership(daemon, output)
        value = {"via": "daemon", **_values(accepted)}
        output.result(value, f"{accepted.client_message_id}  {accepted.status}")
        note_recipient(to, accepted, output)
        return
    refuse_without_daemon(to, daemon_options, relay_options)
    output.note("no daemon runs; connecting to the relay")
    reached = with_mesh(as_daemon(daemon_options, relay_options), daemon_options.chosen_mesh())
    send_direct(to, text, flags, reached, output)


def send_direct(
    to: str, text: str, flags: MessageFlags, mesh_options: MeshOptions, output: Output, *, is_sealed: bool = True
) -> None:
    """Send through the relay itself; returns when the relay has the message on disk."""
    mesh, meta = mesh_options.name, flags.all_meta()

    async def work(client: Client) -> Sent:
        return await client.send(
            to,
            text,
            client_message_id=flags.client_message_id,
            reply_to=flags.reply_to,
            priority=flags.priority,
            meta=meta,
            mentions=[await client.meshes.resolve(member, mesh) for member in flags.mention],
            is_sealed=is_sealed,
        )

    sent = mesh_options.run(mesh, work)
    state = "already stored" if sent.duplicate else "stored by the relay"
    output.result(_sent_value(sent), f"{sent.client_message_id}  {state}  {sent.id}")
    for each in sent.not_queued:
        output.note(f"not queued for {each.recipient}: {each.reason}")


def read_message(text: str) -> str:
    """Return the text of a message, from the argument or stdin; refuse an empty one."""
    message = read_text(text)
    if not message.strip():
        hint = "Give the text as an argument, or `-` and the text on stdin."
        raise error("usage", text="the message is empty", hint=hint)
    return message


def note_recipient(to: str, accepted: Accepted, output: Output) -> None:
    """Print a note if a message that the daemon has accepted may wait, or be refused later."""
    paused = accepted.recipient_paused
    if paused is not None:
        output.note(f"{to} is paused until {paused.until}: {paused.reason or 'no reason given'}")
    if accepted.topic_unverified:
        output.note(
            f"this host does not know the topic {to}, and cannot ask the relay now; the message waits, and the relay "
            "refuses it if there is no such topic"
        )


def has_daemon(daemon_options: DaemonOptions) -> bool:
    """Return True if a daemon listens, False if none runs; wait for one that starts or stops."""
    from posthouse.client.daemon.locate import DaemonState, daemon_state

    location = daemon_options.location()
    for _ in range(round(_START_S / _POLL_S)):
        state = daemon_state(location)
        if state is not DaemonState.WITHOUT_SOCKET:
            return state is DaemonState.LISTENING
        time.sleep(_POLL_S)
    raise error("daemon_unreachable", daemon=str(location), reason="it runs but has no socket")


def refuse_without_daemon(to: str, daemon_options: DaemonOptions, relay_options: RelayOptions) -> None:
    """Raise daemon_unreachable if only a daemon could send: for an agent, or where this home knows no relay."""
    from posthouse.client.daemon.locate import acting_agent

    if acting_agent(daemon_options.agent) or "@" in to:
        hint = "Mail from and to agents needs the daemon: start it with `posthouse up`."
    elif not _knows_relay(daemon_options, relay_options):
        # a relay at the default address may be that of another user of this machine
        hint = "Run `posthouse up`, which sets up this host, or `posthouse join INVITE`; or name a relay with --relay."
    else:
        return
    raise error("daemon_unreachable", daemon=str(daemon_options.location()), reason="it does not run", hint=hint)


def _knows_relay(daemon_options: DaemonOptions, relay_options: RelayOptions) -> bool:
    """Return True if a relay is named, configured or joined, or if one of this home runs."""
    from posthouse.cli.config import load_settings
    from posthouse.cli.relay_service import read_run, relay_directory
    from posthouse.client import Memberships
    from posthouse.model.settings_sources import Source

    return (
        as_daemon(daemon_options, relay_options).relay is not None
        or Memberships.of_home().get(daemon_options.chosen_mesh()) is not None
        or load_settings()["client.relay"].source is not Source.DEFAULT
        or read_run(relay_directory(None)) is not None
    )


def as_daemon(daemon_options: DaemonOptions, relay_options: RelayOptions) -> RelayOptions:
    """Return the relay options with the daemon's relay and key as defaults, for commands that run without a daemon."""
    from dataclasses import replace

    from posthouse.cli.daemon_start import recorded_relay

    directory = daemon_options.root() / daemon_options.chosen_mesh()
    daemon_key = directory / "keypair.json"
    if relay_options.key_file is None and daemon_key.exists():
        relay_options = replace(relay_options, key_file=daemon_key)
    if relay_options.relay is None:
        relay_options = replace(relay_options, relay=recorded_relay(directory))
    return relay_options


def _sent_value(sent: Sent) -> dict[str, Any]:
    return {
        "via": "relay",
        "id": sent.id,
        "seq": sent.seq,
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
