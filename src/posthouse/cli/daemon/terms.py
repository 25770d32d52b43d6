"""What a daemon is started with: options, its own config.toml, the environment, the user's settings.

config.toml in the daemon's directory has the same form as the one in the home of posthouse and goes before it. The
first start notes the relay there, so that later ones need not be told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posthouse.cli.near import Near
from posthouse.cli.settings import load, read_file

if TYPE_CHECKING:
    from posthouse.daemon.settings import DaemonSettings
    from posthouse.model.settings import Resolved

CONFIG_NAME = "config.toml"
_HEADER = "# Settings of this daemon: the same names as in config.toml of the home, which these go before.\n"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the command line says beside settings."""

    near: Near
    relay: str | None
    is_ephemeral: bool | None
    ttl_s: float | None
    tcp: Literal["auto", "off"]

    def tokens(self) -> list[str]:
        """Return the options that say the same to another process."""
        options = {
            "--mesh": self.near.mesh,
            "--dir": str(self.near.place().directory),
            "--relay": self.relay,
            "--ttl": None if self.ttl_s is None else f"{self.ttl_s:.0f}s",
        }
        switches = {
            "--ephemeral": self.is_ephemeral is True,
            "--persistent": self.is_ephemeral is False,
            "--no-tcp": self.tcp == "off",
        }
        given = [part for name, value in options.items() if value is not None for part in (name, value)]
        return given + [name for name, is_given in switches.items() if is_given]


def daemon_settings(wish: Wish, flags: Mapping[str, Any] | None) -> tuple[DaemonSettings, Mapping[str, Resolved]]:
    """Return what the daemon is started with, and all settings."""
    from posthouse.client import ClientOptions
    from posthouse.daemon.identity import is_ephemeral_by_default
    from posthouse.daemon.retention import Retention
    from posthouse.daemon.settings import ClonePolicy, DaemonSettings
    from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

    mesh = validate_mesh_name(wish.near.mesh or DEFAULT_MESH)
    directory = wish.near.place().directory
    values = _values(directory, {**(flags or {}), "client.relay": wish.relay})
    max_age_h, tls_ca = values["outbox.max_age_h"].value, values["client.tls_ca"].value
    lake = values["journal.lake"].value
    is_ephemeral = is_ephemeral_by_default() if wish.is_ephemeral is None else wish.is_ephemeral
    settings = DaemonSettings(
        directory=directory,
        relay=_relay(values, mesh, directory, wish.relay),
        mesh=mesh,
        is_ephemeral=is_ephemeral,
        ttl_s=wish.ttl_s,
        tcp=wish.tcp,
        clone_policy=ClonePolicy(str(values["clone.policy"].value)),
        outbox_max_age_h=None if max_age_h is None else int(str(max_age_h)),
        outbox_max_bytes=int(str(values["outbox.max_bytes"].value)),
        inbox_keep_days=int(str(values["inbox.keep_days"].value)),
        retention=Retention(
            keep_days=int(str(values["journal.keep_days"].value)),
            max_bytes=int(str(values["journal.max_bytes"].value)),
            lake=None if lake is None else str(lake),
        ),
        bus_dir=Path(str(values["bus.dir"].value)).expanduser() if values["daemon.bridge"].value else None,
        client=ClientOptions(
            tls_ca=None if tls_ca is None else Path(str(tls_ca)).expanduser(),
            allow_plain=bool(values["client.allow_plain"].value),
            publish_timeout_s=float(str(values["client.timeout_s"].value)),
        ),
    )
    return settings, values


def note_relay(settings: DaemonSettings) -> None:
    """Write the relay down for later starts; settings that somebody else wrote are left alone."""
    from posthouse.files import private_dir, write_atomic

    directory = private_dir(settings.directory)
    path, before = directory / CONFIG_NAME, noted_relay(directory)
    if not path.exists() or (before is not None and path.read_text(encoding="utf-8") == _note(before)):
        write_atomic(path, _note(settings.relay).encode(), mode=0o644)


def _note(relay: str) -> str:
    import json

    return f"{_HEADER}[client]\nrelay = {json.dumps(relay)}\n"


def noted_relay(directory: Path) -> str | None:
    """Return the relay that a daemon's own settings name."""
    relay = read_file(directory / CONFIG_NAME).get("client", {}).get("relay")
    return relay if isinstance(relay, str) else None


def _values(directory: Path, flags: Mapping[str, Any]) -> dict[str, Resolved]:
    own = read_file(directory / CONFIG_NAME)
    if not own:
        return load(flags)
    return load(flags, own=own)


def _relay(values: Mapping[str, Resolved], mesh: str, directory: Path, given: str | None) -> str:
    """Return the address of the relay: the option, the daemon's own note, where the mesh was joined, the setting."""
    from posthouse.client import Memberships, parse_relay_url

    allow_plain = bool(values["client.allow_plain"].value)
    is_named = given is not None or noted_relay(directory) is not None
    joined = None if is_named else Memberships.of_home().get(mesh)
    address = joined.relay if joined is not None else str(values["client.relay"].value)
    return parse_relay_url(address, allow_plain=allow_plain).origin
