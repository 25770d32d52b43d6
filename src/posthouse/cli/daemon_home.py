"""`posthouse daemon ps|adopt|leave|rotate-token|backup|restore`: the meshes of this home, their keys and files.

`leave` and `adopt` change rights at the relay first and files second: if they are interrupted, repeating them
completes the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from posthouse.cli.options import DEFAULT_DAEMON, DaemonOptions, RelayOptions, has_adopted
from posthouse.cli.output import PLAIN, Output, table
from posthouse.model.errors import PosthouseError, error

if TYPE_CHECKING:
    from posthouse.client import Client
    from posthouse.daemon.directory import MeshDirectory


def ps(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """List the meshes of the running daemon: state, name of this host, relay, and the reason for a failure.

    For example:

        posthouse daemon ps
        posthouse daemon ps --json
    """
    with daemon_options.client() as daemon:
        meshes = daemon.meshes()
    rows = [
        (
            f"{each.mesh} *" if each.is_default else each.mesh,
            each.state,
            "yes" if each.admitted else "no",
            each.member or "",
            each.relay,
            each.reason or "",
        )
        for each in meshes
    ]
    output.result({"meshes": meshes}, table(("mesh", "state", "admitted", "name", "relay", "reason"), rows))


def rotate_token(
    *,
    mcp: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Replace the token of MCP over HTTP instead.")
    ] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Replace the token of the local TCP port; a running daemon refuses the old one at once.

    For example:

        posthouse daemon rotate-token
        posthouse daemon rotate-token --mcp --json
    """
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.files import write_atomic
    from posthouse.keys import new_token

    directory = DaemonDirectory(daemon_options.root())
    if not directory.root.is_dir():
        raise error("usage", text=f"there is no daemon in {directory.root}", hint="Give its directory with --dir.")
    path = directory.tools_token if mcp else directory.local_token
    write_atomic(path, f"{new_token()}\n".encode())
    output.result({"token_file": path}, f"the new token is in {path}")


def adopt(*, daemon_options: DaemonOptions = DEFAULT_DAEMON, output: Output = PLAIN) -> None:
    """Move the rights of the home key in a mesh to the key of the daemon, which the command line uses from then on.

    Homes of earlier versions had two keys: key.json for commands, keypair.json for the daemon. `posthouse doctor` names
    the meshes where the home key is still in use.

    For example:

        posthouse daemon adopt
        posthouse daemon adopt --mesh team --json
    """
    from posthouse.cli.config import find_home
    from posthouse.cli.daemon_start import existing_mesh
    from posthouse.daemon.identity import record_identity
    from posthouse.keys import keyfile

    directory = existing_mesh(daemon_options)
    node, home = keyfile.load(directory.key).node, find_home().key
    if has_adopted(directory.root) or not home.exists():
        output.result({"mesh": directory.mesh, "node": node, "moved": False}, f"commands already act as {node}")
        return
    role = _grant(directory, node, home)
    record_identity(directory, node, is_adopted=True)
    note = _remove_home_key(directory, keyfile.load(home).node)
    text = f"in {directory.mesh} commands now act as {node}, with the role {role}"
    output.result({"mesh": directory.mesh, "node": node, "role": role, "moved": True}, text)
    if note is not None:
        output.note(note)


def _grant(directory: MeshDirectory, node: str, home: Path) -> str:
    """Give the daemon's key the role of the home key; return the role."""
    from posthouse.cli.join import take_name
    from posthouse.keys import keyfile

    home_node, mesh = keyfile.load(home).node, directory.mesh

    async def work(client: Client) -> str:
        members = {member.node: member for member in await client.meshes.members(mesh)}
        mine, daemon = members.get(home_node), members.get(node)
        role: Any = "admin" if mine is None else mine.role
        if daemon is not None and daemon.role in (role, "admin"):
            return str(daemon.role)

        async def claim(name: str) -> dict[str, Any]:
            return await client.meshes.add_member(mesh, node, name, role)

        await take_name(None if daemon is None else daemon.name, claim)
        return str(role)

    return _relay_of(directory, home).run(mesh, work)


def _relay_of(directory: MeshDirectory, key: Path) -> RelayOptions:
    """Return the options for the relay of a mesh, with the address that the daemon uses."""
    from posthouse.cli.daemon_start import recorded_relay

    return RelayOptions(relay=recorded_relay(directory.root), key_file=key)


def _remove_home_key(directory: MeshDirectory, home_node: str) -> str | None:
    """Remove the home key from the members; return a message for the user if that did not work."""
    mesh = directory.mesh

    async def work(client: Client) -> None:
        if any(member.node == home_node for member in await client.meshes.members(mesh)):
            await client.meshes.remove_member(mesh, home_node)

    try:
        _relay_of(directory, directory.key).run(mesh, work)
    except PosthouseError as failure:
        return f"the home key is still a member: {failure}"
    return None


def leave(
    *,
    abort_pending: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Abort messages that have not been sent yet.")
    ] = False,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Leave a mesh: the relay removes this host, the daemon stops serving the mesh, its files are set aside.

    Refused while messages wait to be sent. The directory is kept under another name, with its key and its mail.

    For example:

        posthouse daemon leave --mesh team
        posthouse daemon leave --mesh team --abort-pending --json
    """
    from posthouse.cli.daemon_start import existing_mesh
    from posthouse.client import Memberships
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.model.clock import format_utc, system_clock

    directory = existing_mesh(daemon_options)
    mesh = directory.mesh
    _stop_serving(daemon_options, directory, abort_pending=abort_pending)
    note = _leave_relay(directory)
    stamp = format_utc(system_clock().wall_ns())[:19].replace(":", "").replace("-", "")
    aside = directory.root.with_name(f"{mesh}.left-{stamp}")
    directory.root.rename(aside)
    Memberships.of_home().forget(mesh)
    output.result({"mesh": mesh, "aside": aside}, f"left {mesh}; its files are in {aside}")
    if note is not None:
        output.note(note)
    if not DaemonDirectory(daemon_options.root()).meshes():
        output.note(
            "this host is in no mesh now: join one with `posthouse join`, or stop it with `posthouse daemon down`"
        )


def _stop_serving(daemon_options: DaemonOptions, directory: MeshDirectory, *, abort_pending: bool) -> None:
    """Make a running daemon stop serving the mesh; raises remint_pending if messages wait and are not to be aborted."""
    from posthouse.daemon.identity import abort_rows
    from posthouse.model.clock import system_clock

    try:
        with DaemonOptions(directory.mesh, daemon_options.directory).client() as daemon:
            health = daemon.health()
            waiting = health.queue_depth + health.inflight
            if waiting and not abort_pending:  # the daemon keeps serving the mesh and sends them
                raise error("remint_pending", rows=waiting)
            daemon.remove_mesh(directory.mesh)
    except PosthouseError as failure:
        if failure.code != "daemon_unreachable":
            raise
    lock = directory.lock()
    try:
        abort_rows(directory, system_clock(), abort_pending=abort_pending)
    finally:
        lock.close()


def _leave_relay(directory: MeshDirectory) -> str | None:
    from posthouse.keys import keyfile

    node = keyfile.load(directory.key).node

    async def work(client: Client) -> None:
        await client.meshes.remove_member(directory.mesh, node)

    try:
        _relay_of(directory, directory.key).run(directory.mesh, work)
    except PosthouseError as failure:
        return f"the relay still lists this host: {failure}. An admin can remove it with `posthouse mesh members`."
    return None


PassphraseFile = Annotated[Path | None, Parameter(help="A private file with the passphrase. Default: prompt for it.")]


def backup(
    file: Annotated[Path, Parameter(help="The new file.")],
    /,
    *,
    passphrase_file: PassphraseFile = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Write keys, outbox, inbox, agents and memberships of this home into one encrypted file; the daemon may run.

    For example:

        posthouse daemon backup laptop.backup
        posthouse daemon backup laptop.backup --passphrase-file ./passphrase --json
    """
    from posthouse.cli.config import find_home
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.daemon.home_backup import back_up

    directory = DaemonDirectory(daemon_options.root())
    if not directory.meshes():
        raise error("usage", text=f"there is no daemon in {directory.root}", hint="Give its directory with --dir.")
    meshes = back_up(directory, find_home().path, file, _passphrase(passphrase_file, is_new=True))
    output.result({"file": file, "meshes": meshes}, f"wrote {file} with {', '.join(meshes)}")


def restore(
    file: Annotated[Path, Parameter(help="A file that `daemon backup` wrote.")],
    /,
    *,
    passphrase_file: PassphraseFile = None,
    daemon_options: DaemonOptions = DEFAULT_DAEMON,
    output: Output = PLAIN,
) -> None:
    """Restore a backup into a home without a daemon; start it afterwards with `posthouse daemon up`.

    Before a mesh accepts its first message, the daemon compares its stores with the relay's history. On another
    machine run `posthouse daemon accept-host` first, and only if the old one is gone: two machines with one identity
    take each other's messages.

    For example:

        posthouse daemon restore laptop.backup
        posthouse daemon restore laptop.backup --passphrase-file ./passphrase --json
    """
    from posthouse.cli.config import find_home
    from posthouse.daemon.directory import DaemonDirectory
    from posthouse.daemon.home_backup import restore as restore_home
    from posthouse.model.clock import system_clock

    if not file.exists():
        raise error("usage", text=f"there is no {file}")
    directory = DaemonDirectory(daemon_options.root())
    meshes = restore_home(directory, find_home().path, file, _passphrase(passphrase_file), system_clock())
    output.result({"directory": directory.root, "meshes": meshes}, f"restored {', '.join(meshes)}")
    output.note("start it: posthouse daemon up")


def _passphrase(path: Path | None, *, is_new: bool = False) -> bytes:
    import getpass
    import sys

    from posthouse.files import read_private

    if path is not None:
        given = read_private(path).removesuffix(b"\n")
    elif sys.stdin.isatty():
        given = getpass.getpass("Passphrase of the backup: ").encode()
        if is_new and getpass.getpass("Again: ").encode() != given:
            raise error("usage", text="the two passphrases differ")
    else:
        raise error("usage", text="there is no terminal to ask for a passphrase", hint="Give --passphrase-file FILE.")
    if not given:
        raise error("usage", text="the passphrase is empty")
    return given
