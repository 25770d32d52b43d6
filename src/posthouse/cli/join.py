"""`posthouse join`, `posthouse use`: bring this host into a mesh, and choose the mesh that commands use by default.

Joining pins the key of the relay, and its certificate if the invite names one, before it sends the code. It creates the
key of this host in the mesh, claims a member name, starts the daemon, and proves the path with a message to this host.
"""

from __future__ import annotations

import re
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.completers import complete_meshes
from posthouse.cli.options import DEFAULT_RELAY, DaemonOptions, RelayOptions, read_text
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.address import DEFAULT_INBOX
from posthouse.model.errors import PosthouseError, error
from posthouse.model.node import KEY_PREFIX_MIN_DIGITS, validate_member_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from posthouse.client import Invite, Membership
    from posthouse.client.daemon import DaemonClient, Health
    from posthouse.keys import NodeKey

_NAME_MAX = 60  # leaves room for a number
_NAMES_TRIED = 20
_TAKEN = frozenset({"member_name_taken", "member_name_similar"})
_ADMITTED_S = 20.0
_LOOK_S = 0.05


def join(
    invite: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="The invite, in quotes; `-` reads it from stdin.")
    ],
    /,
    *,
    name: Annotated[str | None, Parameter(help="Name of this host in the mesh. Default: its host name.")] = None,
    no_daemon: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Only join: start no daemon, and keep the default mesh.")
    ] = False,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Join a mesh with an invite: this host gets a key and a name there, and the daemon starts.

    The code of the invite is sent only to the relay that made it; a relay with another key or certificate is refused.
    The mesh becomes the default of later commands. With --key-file that key joins, and no daemon is started.

    For example:

        posthouse join 'posthouse://relay.example:7420/team?relay=...' --name bob
        posthouse join - < invite.txt
    """
    from posthouse.client import Membership, Memberships, parse_invite
    from posthouse.keys import keyfile

    given = parse_invite(read_text(invite))
    require_private_home()
    has_own_key = relay_options.key_file is not None
    key = _host_key(given) if relay_options.key_file is None else keyfile.load_or_create(relay_options.key_file)
    joined = _redeem(given, key, name, relay_options)
    memberships = Memberships.of_home()
    before = memberships.remember(given.mesh, Membership(joined["url"], given.relay, joined.get("name")))
    _note_other_relay(given, before, output)
    text = f"joined {given.mesh} as {joined.get('name')} ({joined.get('role')}) on {joined['url']}"
    if name is not None and joined.get("name") != name:
        output.note(f"this host was in the mesh {given.mesh} before, as {joined.get('name')}; it keeps that name")
    if no_daemon or has_own_key:
        output.result(joined, text)
        return
    memberships.choose(given.mesh)
    started = start_and_prove(given.mesh)
    output.result(joined | started, f"{text}\n{started['text']}")
    output.note("next: posthouse connect claude-code --write, or posthouse send NAME 'hello'")


def _note_other_relay(invite: Invite, before: Membership | None, output: Output) -> None:
    if before is not None and before.node != invite.relay:
        output.note(f"mesh {invite.mesh} was at {before.relay} until now; to reach that relay, use --relay")


def _host_key(invite: Invite) -> NodeKey:
    """Return the key of this host in the mesh of an invite; refuse if the host has a mesh of this name elsewhere."""
    from posthouse.client import Memberships
    from posthouse.daemon.identity import persistent_identity, record_identity

    directory = mesh_directory(invite.mesh)
    known = Memberships.of_home().get(invite.mesh)
    if directory.key.exists() and known is not None and known.node != invite.relay:
        text = f"this host is already in another mesh named {invite.mesh}, at {known.relay}"
        raise error("usage", text=text, hint=f"Leave that one first: `posthouse daemon leave --mesh {invite.mesh}`.")
    if not directory.root.exists():
        directory.prepare()
    key = persistent_identity(directory)
    record_identity(directory, key.node, is_adopted=True)
    return key


def require_private_home() -> None:
    """Refuse a home that other users can open, before anything starts or uses the invite; create a missing one."""
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.files import home_directory, private_dir

    directory = DaemonDirectory(DaemonOptions().root())
    meshes = (directory.mesh(name).root for name in directory.meshes())
    for path in (home_directory(), directory.root, *meshes):
        private_dir(path)


def mesh_directory(mesh: str) -> Any:
    """Return the directory of a mesh in this home."""
    from posthouse.daemon.directory import DaemonDirectory

    return DaemonDirectory(DaemonOptions().root()).mesh(mesh)


def _redeem(invite: Invite, key: NodeKey, name: str | None, relay_options: RelayOptions) -> dict[str, Any]:
    import asyncio

    from posthouse.client import Client, Pins

    # the invite names the relay's key; --relay only gives another address of the same relay
    url = invite.url if relay_options.relay is None else relay_options.url()
    pins = Pins()
    if invite.tls is not None:
        pins.trust_certificate(url.origin, invite.tls)
    client = Client(url, key, mesh=invite.mesh, relay_node=invite.relay, options=relay_options.options(), pins=pins)
    given = replace(invite, url=url)

    async def work() -> dict[str, Any]:
        async with client:
            return await take_name(name, lambda each: client.join(given, each))

    try:
        joined = asyncio.run(work())
    except PosthouseError as failure:
        if failure.code != "relay_key_changed":
            raise
        hint = "Another relay made the invite. Check its address, or ask an admin of the mesh for a new invite."
        raise error(failure.code, hint=hint, **failure.fields) from failure
    home = Pins.of_home()
    home.trust_relay(url.origin, invite.relay)
    if invite.tls is not None:
        home.trust_certificate(url.origin, invite.tls)
    return joined | {"url": str(url)}


async def take_name(name: str | None, claim: Callable[[str], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Claim a member name: the given one, else the host's, with a number appended if it is taken or confusable."""
    if name is not None:
        return await claim(validate_member_name(name))
    first = host_name()
    for number in range(1, _NAMES_TRIED):
        try:
            return await claim(first if number == 1 else f"{first}-{number}")
        except PosthouseError as failure:
            if failure.code not in _TAKEN:
                raise
    raise error("usage", text=f"{first} and {_NAMES_TRIED - 1} names like it are taken", hint="Give one with --name.")


def host_name(given: str | None = None) -> str:
    """Return the name of this host as a valid member name; one that looks like a key gets a prefix."""
    raw = (socket.gethostname() if given is None else given).split(".")[0]
    name = re.sub(r"[^A-Za-z0-9_-]", "-", raw)[:_NAME_MAX].strip("-") or "host"
    is_like_key = name.startswith("ed25519") or re.fullmatch(rf"[0-9a-fA-F]{{{KEY_PREFIX_MIN_DIGITS},}}", name)
    return f"host-{name}" if is_like_key else name


def start_and_prove(mesh: str, relay: str | None = None, *, is_proved: bool = False) -> dict[str, Any]:
    """Start the daemon of a mesh, wait until the relay has admitted it, and send a message from this host to itself.

    With `is_proved` no message is sent, because an earlier start has sent it.
    """
    from posthouse.cli.daemon_start import StartOptions, ensure_daemon

    options = DaemonOptions(mesh=mesh, agent=DEFAULT_INBOX)  # even if an agent runs the command
    started = ensure_daemon(StartOptions(options, relay, is_ephemeral=False, ttl_s=None, tcp="auto"), {})
    with options.client() as daemon:
        health = _wait_admitted(daemon)
        if not health.admitted:
            refused = next((each.reason for each in health.meshes if each.mesh == mesh), None)
            reason = health.relay_error or refused or "the relay has not admitted this host"
            text = f"the daemon runs (pid {started['pid']}) and is not connected yet: {reason}"
            return {"daemon": started, "admitted": False, "text": text}
        if is_proved:
            text = f"the daemon runs (pid {started['pid']}), and the relay has admitted it"
            return {"daemon": started, "admitted": True, "text": text}
        sent = daemon.send(health.node, f"{health.member or 'this host'} is in the mesh {mesh}")
        # only this message: a wait for all mail would skip mail that a person has not read
        arrived = daemon.wait(_ADMITTED_S, peek=True, thread=sent.message_id)
        daemon.seen([item.id for item in arrived])
    proof = "a message to itself has arrived" if arrived else "a message to itself is on its way"
    text = f"the daemon runs (pid {started['pid']}), the relay has admitted it, and {proof}"
    return {"daemon": started, "admitted": True, "arrived": bool(arrived), "text": text}


def _wait_admitted(daemon: DaemonClient) -> Health:
    """Wait until the relay has admitted this host or refused it, and return the state of the daemon."""
    end_s = time.monotonic() + _ADMITTED_S
    while not ((health := daemon.health()).admitted or health.refusal) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return health


def use(
    mesh: Annotated[
        str | None, Parameter(completer=complete_meshes, help="The new default mesh. Without it: show the meshes.")
    ] = None,
    /,
    *,
    output: Output = PLAIN,
) -> None:
    """Choose the mesh that commands use by default, or show the meshes of this host.

    For example:

        posthouse use
        posthouse use team
    """
    from posthouse.client import Memberships
    from posthouse.daemon.directory import DaemonDirectory

    memberships = Memberships.of_home()
    joined = memberships.all()
    known = sorted({*joined, *DaemonDirectory(DaemonOptions().root()).meshes()})
    if mesh is not None:
        if mesh not in known:
            present = f"This host is in: {', '.join(known)}." if known else "This host is in no mesh yet."
            hint = f"{present} `posthouse up` sets one up, `posthouse join INVITE` joins one."
            raise error("usage", text=f"this host is not in a mesh {mesh!r}", hint=hint)
        memberships.choose(mesh)
    chosen = memberships.chosen()
    rows = [(each, "*" if each == chosen else "", joined[each].relay if each in joined else "") for each in known]
    output.result({"mesh": chosen, "meshes": known}, table(("mesh", "chosen", "relay"), rows))
