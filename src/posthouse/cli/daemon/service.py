"""The daemon as a service of this user: what it runs, and where the service manager looks for it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posthouse.model.errors import error


@dataclass(frozen=True, slots=True)
class ServiceTerms:
    """What the service manager has to know."""

    mesh: str
    #: the program and its arguments, each whole
    command: tuple[str, ...]
    #: directories the daemon writes to
    writes: tuple[Path, ...]
    #: variables it finds in its environment
    environment: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the service, the same for one mesh always."""
        return f"posthouse-daemon-{re.sub(r'[^A-Za-z0-9_-]', '_', self.mesh)}"


def program() -> tuple[str, ...]:
    """Return how this posthouse is started, independent of PATH."""
    beside = Path(sys.executable).with_name("posthouse")
    if beside.is_file() and os.access(beside, os.X_OK):
        return (str(beside),)
    found = shutil.which("posthouse")
    return (found,) if found else (sys.executable, "-m", "posthouse.cli.main")


def service_file(name: str, environ: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """Return where the definition of a service belongs on this system."""
    home = Path(environ.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "LaunchAgents" / f"{name}.plist"
    if platform.startswith("linux"):
        config = environ.get("XDG_CONFIG_HOME")
        return (Path(config) if config else home / ".config") / "systemd" / "user" / f"{name}.service"
    raise error("service_unsupported", platform=platform)
