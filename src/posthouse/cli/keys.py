"""`posthouse keys` and `posthouse trust`: the key of this node, and the pinned keys of relays and members.

Only public parts of a key are shown, and an existing key file is never replaced. The passphrase of an imported key
is read from the terminal or from a private file, never from the command line, which every process can read.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.commands import noun
from posthouse.cli.options import DEFAULT_MESH_OPTIONS, KeyFile, MeshOptions, RelayOptions, key_path, load_key
from posthouse.cli.output import PLAIN, Output
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.keys import NodeKey


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
        posthouse keys new --key-file ./agent.json --json
    """
    from posthouse.keys import keyfile

    path = key_path(key_file)
    _show_key(output, keyfile.create(path), path)


def show(*, key_file: KeyFile = None, output: Output = PLAIN) -> None:
    """Show the node id and the public key of this node, never the secret key.

    For example:

        posthouse keys show
        posthouse keys show --json
    """
    _show_key(output, load_key(key_file), key_path(key_file))


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


def trust(
    target: Annotated[str, Parameter(help="A relay (HOST:PORT or URL), or the name of a member.")],
    /,
    *,
    node: Annotated[str | None, Parameter(help="The node id to pin. Default: the one that is found now.")] = None,
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


app = noun("keys", "Create, show and import the key that identifies this node.")
app.command(new, name="new")
app.command(show, name="show")
app.command(import_key, name="import")
