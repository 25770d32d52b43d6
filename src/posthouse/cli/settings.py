"""The settings of this process: read from the file, the environment and the flags of a command.

    [journal]
    keep_days = 7

What a setting may be is decided in posthouse.model.settings; here is only the reading. A file that cannot be
read or names something unknown is refused, never ignored: a setting that does nothing is worse than an error.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posthouse.cli.home import Home, find_home
from posthouse.model.errors import error
from posthouse.model.settings import Resolved, Source, resolve


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
    own: Mapping[str, Any] | None = None,
) -> dict[str, Resolved]:
    """Return every setting by name, with its value and where it comes from; `flags` are keyed by setting.

    `own` is a parsed file that goes before the one of the home.
    """
    home = find_home(environ)
    file = read_file(home.config)
    for area, table in (own or {}).items():
        file[area] = {**file.get(area, {}), **table} if isinstance(table, dict) else table
    values = resolve(file, environ, flags)
    return {name: _place(value, home) for name, value in values.items()}


def _place(value: Resolved, home: Home) -> Resolved:
    """Put a default place of the home where the home is: POSTHOUSE_HOME moves everything below it."""
    if value.source is not Source.DEFAULT or not isinstance(value.value, str):
        return value
    inside = value.value.removeprefix("~/.posthouse/")
    return value if inside == value.value else replace(value, value=str(home.path / inside))


def read_file(path: Path) -> dict[str, Any]:
    """Return the parsed file of settings; a file that does not exist sets nothing."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as failure:
        raise error("config_unreadable", path=str(path), reason=str(failure)) from failure
