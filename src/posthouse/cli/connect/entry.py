"""What an agent's program has to start: this posthouse, whatever its PATH, for the daemon that was named."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from posthouse.cli.near import Near
from posthouse.files.home import HOME_ENV, home_directory


@dataclass(frozen=True)
class ServerEntry:
    """A command with its environment."""

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        return (self.command, *self.args)


def server_entry(near: Near, environ: Mapping[str, str] = os.environ) -> ServerEntry:
    """Return how `posthouse mcp` is started for a daemon."""
    from posthouse.cli.daemon.service import program

    options = [] if near.mesh is None else ["--mesh", near.mesh]
    if near.directory is not None:
        options += ["--dir", str(near.place().directory)]
    command, *rest = program()
    env = {HOME_ENV: str(home_directory(environ))} if environ.get(HOME_ENV) else {}
    return ServerEntry(command, (*rest, "mcp", *options), env)
