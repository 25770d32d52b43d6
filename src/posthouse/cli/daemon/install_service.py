"""`posthouse daemon install-service`: let the service manager of this user run the daemon."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near

if TYPE_CHECKING:
    from posthouse.cli.daemon.service import ServiceTerms


def install_service(
    *,
    relay: Annotated[str | None, Parameter(help="Address of the relay; without it as for `daemon up`.")] = None,
    show: Annotated[bool, Parameter(negative=(), show_default=False, help="Only show it, write nothing.")] = False,
    near: Near = USUAL,
    output: Output = PLAIN,
) -> None:
    """Write a systemd user unit, or on macOS a launchd agent, that runs the daemon and restarts it.

    It is not restarted after exit code 4: an identity that is in use elsewhere does not get better by trying.

    For example:

        posthouse daemon install-service
        posthouse daemon install-service --mesh team --relay relay.example:7420
        posthouse daemon install-service --show --json
    """
    from posthouse.cli.daemon.launchd_plist import launchd_plist
    from posthouse.cli.daemon.service import service_file
    from posthouse.cli.daemon.systemd_unit import systemd_unit
    from posthouse.files import write_atomic

    terms = _terms(near, relay)
    path = service_file(terms.name)
    text = launchd_plist(terms) if path.suffix == ".plist" else systemd_unit(terms)
    value = {"service": terms.name, "path": path, "text": text, "written": not show}
    if show:
        output.answer(value, text.rstrip("\n"))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.encode(), mode=0o644)
    output.answer(value, f"wrote {path}")
    output.note(f"start it now and at every login: {_start_command(path, terms.name)}")


def _terms(near: Near, relay: str | None) -> ServiceTerms:
    from posthouse.cli.daemon.service import ServiceTerms, program
    from posthouse.files.home import HOME_ENV, home_directory
    from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

    mesh = validate_mesh_name(near.mesh or DEFAULT_MESH)
    directory = near.place().directory
    words = ["daemon", "up", "--foreground", "--persistent", "--mesh", mesh, "--dir", str(directory)]
    if relay is not None:
        words += ["--relay", relay]
    home = home_directory()
    environment = {HOME_ENV: str(home)} if HOME_ENV in os.environ else {}
    writes = (home,) if directory.is_relative_to(home) else (home, directory)
    for each in writes:  # the unit's sandbox needs them to exist
        _make(each)
    return ServiceTerms(mesh, (*program(), *words), writes, environment)


def _make(directory: Path) -> None:
    from posthouse.files import private_dir

    private_dir(directory)


def _start_command(path: Path, name: str) -> str:
    if sys.platform == "darwin":
        return f"launchctl bootstrap gui/{os.getuid()} {path}"
    return f"systemctl --user daemon-reload && systemctl --user enable --now {name}"
