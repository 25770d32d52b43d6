"""`posthouse keys` and `posthouse trust`: the key of this node, its rotation and recovery, and the keys of others.

Only public parts of a key are shown, and only a rotation replaces a key file; the old key stays next to it. The
passphrase of an imported key is read from the terminal or from a private file, never from the command line, which every
process can read.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.commands import noun
from posthouse.cli.completers import complete_members
from posthouse.cli.options import (
    DEFAULT_MESH_OPTIONS,
    DEFAULT_RELAY,
    KeyFile,
    MeshOptions,
    RelayOptions,
    key_path,
    load_key,
    parse_duration,
)
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.keys import NodeKey


_DAEMON_KEY = "keypair.json"


def _show_key(output: Output, key: NodeKey, path: Path) -> None:
    """Show the node id of a key, its OpenSSH form and its file."""
    from posthouse.keys import write_public_line

    ssh = write_public_line(key.node)
    lines = (f"node  {key.node}", f"ssh   {ssh}", f"file  {path}")
    output.result({"node": key.node, "ssh": ssh, "file": path}, "\n".join(lines))


def new(*, key_file: KeyFile = None, output: Output = PLAIN) -> None:
    """Create a key and show its node id; an existing key is never replaced.

    For example:

        posthouse keys new
        posthouse keys new --key-file keys/agent.json --json
    """
    from posthouse.keys import keyfile

    path = key_path(key_file)
    _show_key(output, keyfile.create(path), path)


def show(
    *,
    node: Annotated[bool, Parameter(negative=(), show_default=False, help="Show the node id alone.")] = False,
    key_file: KeyFile = None,
    output: Output = PLAIN,
) -> None:
    """Show the node id and the public key of this node, never the secret key.

    For example:

        posthouse keys show
        posthouse mesh members team --add "$(posthouse keys show --node)" --name bob
    """
    key = load_key(key_file)
    if node:
        output.result({"node": key.node}, key.node)
    else:
        _show_key(output, key, key_path(key_file))


def import_key(
    source: Annotated[Path, Parameter(help="An OpenSSH private key, or a key file of posthouse.")],
    /,
    *,
    key_file: KeyFile = None,
    passphrase_file: Annotated[Path | None, Parameter(help="A private file with the passphrase.")] = None,
    output: Output = PLAIN,
) -> None:
    """Import an OpenSSH ed25519 key as the key of this node; an existing key is never replaced.

    For example:

        posthouse keys import ~/.ssh/id_ed25519
    """
    from posthouse.keys import keyfile

    path = key_path(key_file)
    _show_key(output, keyfile.create(path, _read_key(source, passphrase_file)), path)


def _read_key(source: Path, passphrase_file: Path | None) -> NodeKey:
    from posthouse.files import read_private
    from posthouse.keys import keyfile

    if passphrase_file is not None:
        return keyfile.load(source, read_private(passphrase_file).removesuffix(b"\n"))
    try:
        return keyfile.load(source)
    except PosthouseError as failure:
        if failure.code != "passphrase_needed" or not sys.stdin.isatty():
            raise
    return keyfile.load(source, getpass.getpass(f"Passphrase of {source}: "))


def rotate(*, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """Replace the key of this node with a new one, at every relay where this home is a member.

    The old key signs the new one as its successor: membership, name and waiting messages continue under the new key,
    and the old key is refused. The old key stays beside the new one, to open mail that was sealed for it. If a relay
    cannot be reached, run the command again: it continues with the same new key.

    For example:

        posthouse keys rotate
        posthouse keys rotate --key-file keys/agent.json --relay relay.example:7420
    """
    from posthouse.keys import keyfile

    path = key_path(relay_options.key_file)
    if path.name == _DAEMON_KEY:
        raise error("usage", text="the daemon is using this key", hint="Run `posthouse daemon rotate-key`.")
    before, successor = load_key(path), keyfile.prepare_next(path)
    relays = [origin for origin in _relays(relay_options) if _rotate_at(origin, before, successor, relay_options)]
    if not relays:
        hint = "Name a relay that knows the key with --relay."
        raise error("key_unknown", node=before.node, hint=hint)
    keyfile.promote_next(path)
    value = {"before": before.node, "node": successor.node, "relays": relays, "file": path}
    output.result(value, f"the key of this node is now {successor.node}, at {', '.join(relays)}; it was {before.node}")


def _relays(relay_options: RelayOptions) -> list[str]:
    """Return the relays that may know the key of this home: those of its meshes, and the one that commands use."""
    from posthouse.client import Memberships

    joined = [] if relay_options.relay else [each.relay for each in Memberships.of_home().all().values()]
    return list(dict.fromkeys([*joined, str(relay_options.url())]))


def _rotate_at(origin: str, before: NodeKey, successor: NodeKey, relay_options: RelayOptions) -> bool:
    """Rotate a key at one relay; return False if the relay does not know it."""
    import asyncio

    from posthouse.client import Client

    async def work() -> bool:
        async with Client(origin, before, options=relay_options.options()) as client:
            try:
                await client.keys.rotate(successor)
            except PosthouseError as failure:
                if failure.code != "key_unknown":
                    raise
                return False
            return True

    return asyncio.run(work())


_Node = Annotated[str, Parameter(help="A node id.")]


def recovery(node: _Node, /, *, mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS, output: Output = PLAIN) -> None:
    """Name the key that may replace this node's key if it is lost; keep that key on paper or on another machine.

    For example:

        posthouse keys new --key-file keys/recovery.json
        posthouse keys recovery ed25519:03a1...31b8 --mesh team
    """
    from posthouse.keys import public_key
    from posthouse.model.event import RECOVERY_KEY

    public_key(node)
    mesh_options.run(mesh_options.name, lambda client: client.publish(kind=RECOVERY_KEY, tags=[("recovery", node)]))
    output.result({"recovery": node}, f"{node} can replace the key of this node from now on")


def recover(
    node: _Node,
    /,
    *,
    recovery_key: Annotated[Path, Parameter(help="Key file of the recovery key that the lost key had named.")],
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    r"""Replace a lost key with the key of this node, which is created if there is none; needs the recovery key.

    For example:

        posthouse keys recover ed25519:03a1...31b8 --recovery-key ./recovery.json \
            --relay relay.example:7420
    """
    import asyncio

    from posthouse.client import Client
    from posthouse.keys import keyfile

    path = key_path(relay_options.key_file)
    signer, successor = keyfile.load(recovery_key), keyfile.load_or_create(path)

    async def work() -> None:
        async with Client(relay_options.url(), signer, options=relay_options.options()) as client:
            await client.keys.recover(node, successor)

    asyncio.run(work())
    output.result({"before": node, "node": successor.node, "file": path}, f"{successor.node} replaces {node}")


def chain(node: _Node, /, *, relay_options: RelayOptions = DEFAULT_RELAY, output: Output = PLAIN) -> None:
    """Show the successors of a key: when and why it was replaced, and whether its owner signed the change.

    For example:

        posthouse keys chain ed25519:03a1...31b8
    """
    import msgspec

    from posthouse.client.key_chains import is_proven
    from posthouse.model.clock import format_utc

    found = relay_options.run(None, lambda client: client.keys.chain(node))
    rows = [
        (
            format_utc(each.at_ns),
            each.reason,
            each.node,
            each.successor or "-",
            "signed" if each.successor and is_proven(found, each.node, each.successor) else f"by {each.actor}",
        )
        for each in found.changes
    ]
    shown = table(("time", "what", "key", "successor", "proof"), rows) if rows else f"{node} was never replaced"
    output.result(msgspec.to_builtins(found), shown)


def replace(
    node: _Node,
    successor: Annotated[str, Parameter(help="The new key of the same owner.")],
    /,
    *,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Replace a lost or revoked key with another one; for admins of the relay.

    Other members see that an admin did this, not the owner: they keep the old pin until they run `posthouse trust`.

    For example:

        posthouse keys replace ed25519:03a1...31b8 ed25519:7c2e...90aa
    """
    relay_options.run(None, lambda client: client.keys.replace(node, successor))
    output.result({"before": node, "node": successor}, f"{successor} replaces {node}")


def revoke(
    node: _Node,
    /,
    *,
    since: Annotated[
        str | None,
        Parameter(help="Mark the events it signed since then: a duration such as 2h, or a time. Default: now."),
    ] = None,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Refuse a key everywhere at once, and mark the events it signed since a given time; for admins of the relay.

    For example:

        posthouse keys revoke ed25519:03a1...31b8
        posthouse keys revoke ed25519:03a1...31b8 --since 2h --json
    """
    from_ns = None if since is None else _since_ns(since)
    change = relay_options.run(None, lambda client: client.keys.revoke(node, from_ns))
    output.result({"node": node, "suspect_from_ns": change.suspect_from_ns}, f"{node} is refused from now on")


def _since_ns(text: str) -> int:
    from posthouse.model.clock import parse_utc, system_clock
    from posthouse.model.limits import SECOND_NS

    try:
        return parse_utc(text)
    except PosthouseError:
        return system_clock().wall_ns() - round(parse_duration(text) * SECOND_NS)


def trust(
    target: Annotated[
        str, Parameter(completer=complete_members, help="A relay (HOST:PORT or URL), or the name of a member.")
    ],
    /,
    *,
    node: Annotated[str | None, Parameter(help="The node id to pin. Default: the one it has now.")] = None,
    mesh_options: MeshOptions = DEFAULT_MESH_OPTIONS,
    output: Output = PLAIN,
) -> None:
    """Pin the key of a relay or a member, for example after an intended key change.

    Compare the key over another channel first and pass it with --node: a machine in the middle could show another key.

    For example:

        posthouse trust relay.example:7420 --node ed25519:03a1...31b8
        posthouse trust bob --mesh team --json
    """
    is_relay = ":" in target or "." in target  # a member name has neither
    before, now = (
        _trust_relay(target, node, mesh_options)
        if is_relay
        else _trust_member(target, node, mesh_options.name, mesh_options)
    )
    value = {"relay" if is_relay else "member": target, "node": now, "before": before}
    change = "as before" if before == now else f"instead of {before}" if before else "for the first time"
    output.result(value, f"pinned {now} for {target}, {change}")


def _trust_relay(target: str, node: str | None, relay_options: RelayOptions) -> tuple[str | None, str]:
    import asyncio

    from posthouse.client import Client, Pins, parse_relay_url
    from posthouse.keys import NodeKey, public_key

    options = relay_options.options()
    url = parse_relay_url(target, allow_plain=options.allow_plain)

    async def ask() -> str:
        # a throw-away key and no pins: the request does not reveal this node
        async with Client(url, NodeKey.generate(), pins=Pins(None), options=options) as client:
            return await client.identify()

    found = node or asyncio.run(ask())
    public_key(found)
    return Pins.of_home().trust_relay(url.origin, found), found


def _trust_member(name: str, node: str | None, mesh: str, relay_options: RelayOptions) -> tuple[str | None, str]:
    async def work(client: Client) -> tuple[str | None, str]:
        if node is not None:
            found = {member.name: member.node for member in await client.meshes.unpinned_members(mesh)}.get(name)
            if found != node:
                raise error("member_key_changed", mesh=mesh, name=name, pinned=node, found=str(found))
        return await client.meshes.trust_member(mesh, name)

    return relay_options.run(mesh, work)


app = noun("keys", "Create, show, import, rotate and recover the key of this node; replace and revoke others.")
app.command(new, name="new")
app.command(show, name="show")
app.command(import_key, name="import")
app.command(rotate, name="rotate")
app.command(recovery, name="recovery")
app.command(recover, name="recover")
app.command(chain, name="chain")
app.command(replace, name="replace")
app.command(revoke, name="revoke")
