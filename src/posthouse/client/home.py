"""Where a client keeps what it learned: the home of posthouse, ~/.posthouse or POSTHOUSE_HOME."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

HOME_ENV = "POSTHOUSE_HOME"


def client_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the home that the environment names, or the default one."""
    given = environ.get(HOME_ENV)
    return Path(given).expanduser().absolute() if given else Path.home() / ".posthouse"
