"""The directory of a daemon that was there before, for commands that work on it while the daemon does not run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from posthouse.cli.near import Near
from posthouse.model.errors import error

if TYPE_CHECKING:
    from posthouse.daemon.directory import DaemonDirectory


def existing_directory(near: Near) -> DaemonDirectory:
    """Return the directory; without one a usage error says where it was looked for."""
    from posthouse.daemon.directory import DaemonDirectory

    root = near.place().directory
    if not root.is_dir():
        raise error("usage", text=f"there is no daemon in {root}", hint="Give its directory with --dir, or its --mesh.")
    return DaemonDirectory(root)
