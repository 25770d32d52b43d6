"""The files that the command line keeps in the home of posthouse."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posthouse.files.home import home_directory

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
    return Home(home_directory(environ))
