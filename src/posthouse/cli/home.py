"""Where posthouse keeps what belongs to a user: ~/.posthouse, or POSTHOUSE_HOME.

Names only: nothing is made or read here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOME_ENV = "POSTHOUSE_HOME"
CONFIG_NAME = "config.toml"


@dataclass(frozen=True, slots=True)
class Home:
    """The home directory of posthouse and the files in it."""

    path: Path

    @property
    def key(self) -> Path:
        """The key file of this user's node."""
        return self.path / "key.json"

    @property
    def config(self) -> Path:
        """The file of settings."""
        return self.path / CONFIG_NAME


def find_home(environ: Mapping[str, str] = os.environ) -> Home:
    """Return the home that the environment names, or the default one."""
    given = environ.get(HOME_ENV)
    return Home(Path(given).expanduser().absolute() if given else Path.home() / ".posthouse")
