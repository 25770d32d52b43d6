"""`posthouse up`, `posthouse invite`: start relay and daemon on this machine, and print the command for another host.

`up` is safe to repeat: it starts what does not run, on the last address given with --listen. If no address is given and
another program uses the default port, for example the relay of another user, the relay takes a free port and keeps it.
A relay that other machines can reach makes its own certificate if none is given; invites carry its fingerprint, so no
authority is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import shlex
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from posthouse.cli.completers import complete_meshes
from posthouse.cli.config import Settings, find_home, load_settings, setting_tokens
from posthouse.cli.join import mesh_directory, require_private_home, start_and_prove, take_name
from posthouse.cli.mesh_invites import ONE_MEMBER, InviteOptions
from posthouse.cli.options import DEFAULT_DAEMON, DEFAULT_RELAY, RelayOptions, default_mesh
from posthouse.cli.output import PLAIN, Output
from posthouse.model.clock import system_clock
from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SECOND_NS
from posthouse.model.node import DEFAULT_MESH, validate_member_name

if TYPE_CHECKING:
    from posthouse.client import Client

CERTIFICATE_NAME, CERTIFICATE_KEY_NAME = "tls-cert.pem", "tls-key.pem"
_ADDRESS_NAME = "listen"  # in the relay's directory: the address that `up` was given or chose, for later starts
_CERTIFICATE_DAYS = 3_650
_LOOPBACK = "127.0.0.1"
_FREE_ADDRESS = f"{_LOOPBACK}:0"  # the system chooses the port


def up(
    *,
    listen: Annotated[
        str | None, Parameter(help="HOST:PORT of the relay; 0.0.0.0:7420 lets other machines reach it.")
    ] = None,
    name: Annotated[str | None, Parameter(help="Name of this host in the mesh. Default: its host name.")] = None,
    output: Output = PLAIN,
) -> None:
    """Run a relay and a daemon on this machine, in the background, and name this host; safe to repeat.

    A host that uses the relay of another machine, because it joined a mesh there or its settings say so, gets a daemon
    only. With a --listen that other machines can reach, the relay uses TLS; it makes a certificate if none is
    configured. `posthouse invite` prints the line for another host, `posthouse down` stops what is running.

    For example:

        posthouse up
        posthouse up --listen 0.0.0.0:7420
        posthouse up --listen 127.0.0.1:7420 --json
    """
    from posthouse.cli.daemon_start import daemon_pid
    from posthouse.relay.listen import parse_listen

    if name is not None:
        validate_member_name(name)
    if listen is not None:
        parse_listen(listen)
    require_private_home()
    other = None if listen is not None else other_relay()
    is_proved = daemon_pid(DEFAULT_DAEMON) is not None
    if other is None:
        started = _run_here(listen, name, output, is_proved=is_proved)
    else:
        from posthouse.client import Memberships

        mesh = default_mesh()
        joined = Memberships.of_home().get(mesh)
        if name is not None and joined is not None and joined.name != name:
            output.note(f"this host joined {mesh} as {joined.name} and keeps that name; an admin can change it")
        started = {
            "relay": None,
            "mesh": mesh,
            "name": joined and joined.name,
            **start_and_prove(mesh, other, is_proved=is_proved),
        }
    relay = started["relay"]
    place = f"the relay is at {other}" if relay is None else f"the relay listens on {relay['url']} (pid {relay['pid']})"
    named = f"in the mesh {started['mesh']} this host is {started['name'] or 'not a member'}"
    output.result(started, "\n".join([place, started["text"], named]))
    output.note("\n".join(["next:", *(f"  {line}" for line in next_steps(is_member=bool(started["name"])))]))


def _run_here(listen: str | None, name: str | None, output: Output, *, is_proved: bool) -> dict[str, Any]:
    """Run a relay on this machine, and its daemon; return both with the host's name."""
    _ensure_key()
    run = _ensure_relay({} if listen is None else {"relay.listen": listen}, output)
    origin = _local_origin(run["url"])
    _pin(origin, run)
    member = _ensure_member(origin, run["relay"], name)
    started = start_and_prove(DEFAULT_MESH, origin, is_proved=is_proved)
    return {"relay": run, "mesh": DEFAULT_MESH, "name": member, **started}


def other_relay() -> str | None:
    """Return the address of the relay that this host uses if it does not belong to this home, else None."""
    from posthouse.cli.relay_service import relay_directory
    from posthouse.client import Memberships, parse_relay_url
    from posthouse.keys import keyfile
    from posthouse.model.settings_sources import Source
    from posthouse.relay.server import KEY_NAME

    joined = Memberships.of_home().get(default_mesh())
    if joined is not None:
        key = relay_directory(None) / KEY_NAME
        return None if key.exists() and keyfile.load(key).node == joined.node else joined.relay
    values = load_settings()
    configured = values["client.relay"]
    if configured.source is Source.DEFAULT or configured.value == values.text("relay.listen"):
        return None
    return parse_relay_url(values.text("client.relay"), allow_plain=True).origin


def next_steps(*, is_member: bool = True) -> list[str]:
    """Return suggestions for the next commands, each with a description."""
    if not is_member:
        return ["posthouse join 'INVITE'                  join the mesh with an invite of one of its admins"]
    return [
        "posthouse connect claude-code --write    let a coding agent use posthouse",
        "posthouse send NAME 'hello'              a message; for names: posthouse peers",
        "posthouse invite                         the line that lets another host join",
        "posthouse console                        see agents and messages in a browser",
        "posthouse down                           stop what runs",
    ]


def _ensure_key() -> None:
    """Make the key of this host unless it has one; a home key from an earlier version stays in use."""
    from posthouse.daemon.identity import persistent_identity

    directory = mesh_directory(DEFAULT_MESH)
    if find_home().key.exists() or directory.key.exists():
        return
    directory.prepare()
    persistent_identity(directory)


def _ensure_relay(given: dict[str, Any], output: Output) -> dict[str, Any]:
    """Return the record of the relay that runs here; start one if none runs."""
    from posthouse.cli.relay_service import read_run
    from posthouse.files import private_dir, write_atomic

    values = load_settings(given)
    directory = private_dir(values.path("relay.data_dir").absolute())
    if running := read_run(directory):
        _check_same_address(given.get("relay.listen"), running)
        return running
    address = _address_of_last_up(values, directory)
    if address is not None:
        given = given | {"relay.listen": address}
    try:
        started = _start_relay(given, directory)
    except PosthouseError as failure:
        if failure.code != "listen_failed" or _is_address_named(load_settings(given)):
            raise
        given = given | {"relay.listen": _FREE_ADDRESS}
        started = _start_relay(given, directory)
        taken = values.text("relay.listen")
        output.note(f"another program uses {taken}: from now on this relay listens on {started['listen']}")
    if "relay.listen" in given:
        write_atomic(directory / _ADDRESS_NAME, f"{started['listen']}\n".encode())
    return started


def _start_relay(given: dict[str, Any], directory: Path) -> dict[str, Any]:
    from posthouse.cli.detach import start_detached
    from posthouse.cli.relay_service import LOG_NAME

    values = load_settings(given)
    if values["relay.log_file"].value is None:
        given = given | {"relay.data_dir": str(directory), "relay.log_file": str(directory / LOG_NAME)}
    given |= _certificate_settings(values, directory)
    return start_detached("relay", ("relay", "up", "--json", *setting_tokens(given)), slow="relay_start_slow")


def _is_address_named(values: Settings) -> bool:
    """Return True if an option, the environment or a file names the address of the relay."""
    from posthouse.model.settings_sources import Source

    return values["relay.listen"].source is not Source.DEFAULT


def _address_of_last_up(values: Settings, directory: Path) -> str | None:
    """Return the address that `up` last was given or chose; None if a setting names one."""
    if _is_address_named(values):
        return None
    with contextlib.suppress(FileNotFoundError):
        return (directory / _ADDRESS_NAME).read_text(encoding="utf-8").strip()
    return None


def _check_same_address(listen: str | None, running: dict[str, Any]) -> None:
    """Refuse an address that differs from the one on which the relay already listens."""
    host, _, port = (listen or "").rpartition(":")
    present_host, _, present_port = str(running["listen"]).rpartition(":")
    if listen is not None and (host != present_host or port not in ("0", present_port)):
        text = f"the relay already listens on {running['listen']}"
        raise error("usage", text=text, hint="Stop it first: `posthouse relay down`, then `posthouse up --listen ...`.")


def _certificate_settings(values: Settings, directory: Path) -> dict[str, Any]:
    """Return the certificate settings of a relay that other machines can reach; make the certificate the first time."""
    host = values.text("relay.listen").rpartition(":")[0].strip("[]")
    if _is_loopback(host) or values["relay.tls_cert"].value is not None:
        return {}
    cert, key = directory / CERTIFICATE_NAME, directory / CERTIFICATE_KEY_NAME
    if not cert.exists():
        _make_first_certificate(cert, key)
    return {"relay.tls_cert": str(cert), "relay.tls_key": str(key)}


def _make_first_certificate(cert: Path, key: Path) -> None:
    from posthouse.extras import install_hint

    try:
        make_certificate(cert, key)
    except ModuleNotFoundError as missing:
        hint = f"{install_hint('ssh')} Or give a certificate: relay.tls_cert and relay.tls_key."
        raise error("extra_missing", library="cryptography", hint=hint) from missing


def make_certificate(cert: Path, key: Path) -> None:
    """Write a key and a self-signed certificate; clients accept it by its fingerprint."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    from posthouse.files import write_atomic

    private = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
    now = datetime.datetime.fromtimestamp(system_clock().wall_ns() / SECOND_NS, datetime.UTC)
    names: list[x509.GeneralName] = [x509.DNSName(host), x509.DNSName("localhost")]
    names += [x509.IPAddress(ipaddress.ip_address(each)) for each in {_LOOPBACK, outward_address()}]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_CERTIFICATE_DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = private.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_atomic(key, secret)
    write_atomic(cert, made.public_bytes(pem))


def certificate_fingerprint(cert: Path) -> str:
    """Return the fingerprint of a certificate file, as an invite carries it."""
    import ssl

    first = cert.read_text().partition("-----END CERTIFICATE-----")
    return "sha256:" + hashlib.sha256(ssl.PEM_cert_to_DER_cert(first[0] + first[1])).hexdigest()


def outward_address() -> str:
    """Return the address of this machine towards other networks, without sending a packet."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return _LOOPBACK
        return str(probe.getsockname()[0])


def _is_loopback(host: str) -> bool:
    from posthouse.client.relay_url import is_loopback

    return is_loopback(host)


def _local_origin(url: str) -> str:
    """Return the address at which this machine reaches a relay that runs on it."""
    from posthouse.client import parse_relay_url

    found = parse_relay_url(url, allow_plain=True)
    return found.origin if _is_loopback(found.host) else replace(found, host=_LOOPBACK).origin


def _pin(origin: str, run: dict[str, Any]) -> None:
    """Pin the key and the certificate of a relay of this machine at first use."""
    from posthouse.client import Pins

    given = load_settings().optional_path("relay.tls_cert")
    cert = Path(run["data_dir"]) / CERTIFICATE_NAME if given is None else given
    if origin.startswith("https:") and cert.exists():
        Pins.of_home().trust_certificate(origin, certificate_fingerprint(cert))
    Pins.of_home().check_relay(origin, run["relay"])


def _ensure_member(origin: str, relay_node: str, name: str | None) -> str:
    """Give this host a name in the mesh main, and return it."""
    from posthouse.client import Membership, Memberships
    from posthouse.keys import keyfile

    directory = mesh_directory(DEFAULT_MESH)
    options = RelayOptions(relay=origin)
    memberships = Memberships.of_home()
    if not directory.key.exists():
        from posthouse.daemon.identity import persistent_identity

        directory.prepare()
        persistent_identity(directory)
    node = keyfile.load(directory.key).node
    joined = memberships.get(DEFAULT_MESH)
    known = None if joined is None else joined.name

    async def work(client: Client) -> str:
        for member in await client.meshes.members(DEFAULT_MESH):
            # the relay calls its first administrator `admin`: that is not a name of this host
            if member.node == node and member.name is not None and member.name == (name or known):
                return member.name
        is_admin = client.key.node == node

        async def claim(wanted: str) -> dict[str, Any]:
            role: Literal["admin", "member"] = "admin" if is_admin else "member"
            await client.meshes.add_member(DEFAULT_MESH, node, wanted, role)
            return {"name": wanted}

        return str((await take_name(name, claim))["name"])

    member = options.run(DEFAULT_MESH, work)
    memberships.remember(DEFAULT_MESH, Membership(origin, relay_node, member))
    if memberships.chosen() is None:
        memberships.choose(DEFAULT_MESH)
    return member


def invite(
    mesh: Annotated[
        str | None, Parameter(completer=complete_meshes, help="Name of the mesh. Default: the chosen one.")
    ] = None,
    /,
    *,
    invite_options: InviteOptions = ONE_MEMBER,
    relay_options: RelayOptions = DEFAULT_RELAY,
    output: Output = PLAIN,
) -> None:
    """Print the whole command that lets another host join.

    Anyone who has it can join: send it over a trusted channel.

    For example:

        posthouse invite
        posthouse invite team --uses 5 --address relay.example:7420 --json
    """
    from posthouse.client import Pins

    name, address = mesh or default_mesh(), invite_options.address
    own = relay_options.url(name)
    made = replace(invite_options.make(name, relay_options), tls=Pins.of_home().certificate(own.origin))
    reached = made.url if address is None and (own.others or not _is_loopback(own.host)) else None
    made = replace(made, url=reached or _reachable(own.host, own.port, address))
    command = f"posthouse join {shlex.quote(str(made))}"
    value = {"command": command, "invite": str(made), "mesh": name}
    output.result(value | {"role": invite_options.role, "uses": invite_options.uses}, command)
    if _is_loopback(made.url.host):
        listens = _listening_host()
        if listens and not _is_loopback(listens):
            given = f"posthouse invite --address NAME:{own.port}"
            output.note(f"only this machine can reach that address; give the one that others use: {given}")
        else:
            others = "posthouse relay down && posthouse up --listen 0.0.0.0:7420"
            output.note(f"only this machine can reach the relay; to let others reach it: {others}")


def _reachable(host: str, port: int, address: str | None) -> Any:
    """Return the address for other hosts: the given one, else the one on which a relay of this machine listens."""
    from posthouse.client.relay_url import RelayUrl, relay_at

    if address is not None:
        return relay_at(address)
    listens = _listening_host()
    if listens and not _is_loopback(listens):
        outward = outward_address() if listens in ("0.0.0.0", "::") else listens
        return RelayUrl("https", outward, port)
    return RelayUrl("http", host, port)


def _listening_host() -> str:
    """Return the host part of the address on which the relay of this home listens; empty if none runs."""
    from posthouse.cli.relay_service import read_run

    run = read_run(load_settings().path("relay.data_dir").absolute()) or {}
    return str(run.get("listen", "")).rpartition(":")[0].strip("[]")
