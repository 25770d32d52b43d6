"""Where posthouse keeps what belongs to a user: ~/.posthouse, or the directory that POSTHOUSE_HOME names.

A name only: nothing is made or read here. Every default place of posthouse lies below it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

HOME_ENV = "POSTHOUSE_HOME"


def home_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home that the environment names, or the default one."""
    given = environ.get(HOME_ENV)
    return Path(given).expanduser().absolute() if given else Path.home() / ".posthouse"
