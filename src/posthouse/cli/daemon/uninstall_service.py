"""`posthouse daemon uninstall-service`: take the daemon from the service manager of this user."""

from __future__ import annotations

import sys

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.near import USUAL, Near


def uninstall_service(*, near: Near = USUAL, output: Output = PLAIN) -> None:
    """Remove what `install-service` wrote; a daemon that runs goes on until it is ended.

    For example:

        posthouse daemon uninstall-service
        posthouse daemon uninstall-service --mesh team --json
    """
    from posthouse.cli.daemon.service import ServiceTerms, service_file
    from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

    mesh = validate_mesh_name(near.mesh or DEFAULT_MESH)
    name = ServiceTerms(mesh, (), (), {}).name
    path = service_file(name)
    was_there = path.exists()
    path.unlink(missing_ok=True)
    output.answer({"service": name, "path": path, "removed": was_there}, f"removed {path}" if was_there else "none")
    if was_there:
        stop = f"launchctl bootout gui/$(id -u)/{name}" if sys.platform == "darwin" else f"systemctl --user stop {name}"
        output.note(f"end the one that runs: {stop}")
