"""What every command of the pipeline takes: where history comes from, where the lake is, where Spark computes.

Without --source the stores of this host are taken: the relay's, the bus's, and those of every daemon. Imports of the
pipeline stay inside functions, so that `posthouse --help` loads none of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from posthouse.cli.identity import KeyFile
from posthouse.cli.reach import Reach
from posthouse.cli.settings import load
from posthouse.model.errors import error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.pipeline.lake import Lake

_GROUP = Group("Pipeline", sort_key=4)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class Place:
    """Where the pipeline works; part of the signature of every command of it."""

    source: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            consume_multiple=True,
            show_default=False,
            help="A store's file or directory, or a relay's URL. Several times. Without it every store of this host.",
        ),
    ] = ()
    lake: Annotated[
        Path | None, Parameter(help="Directory of the lake; without it POSTHOUSE_PIPELINE_LAKE or ~/.posthouse/lake.")
    ] = None
    master: Annotated[
        str | None, Parameter(help="Where Spark computes: local[N], local[*] or a cluster's URL [default: local[*]].")
    ] = None
    key_file: KeyFile = None

    def settings(self) -> dict[str, Any]:
        """Return every setting's value by name, the options of this command before file and environment."""
        lake = None if self.lake is None else str(self.lake)
        found = load({"pipeline.lake": lake, "pipeline.master": self.master})
        return {name: resolved.value for name, resolved in found.items()}

    def lake_path(self) -> Path:
        """Return the directory of the lake."""
        return Path(str(self.settings()["pipeline.lake"])).expanduser().absolute()

    def open_lake(self) -> Lake:
        """Return the lake; it may not exist yet."""
        from posthouse.pipeline.lake import Lake

        return Lake(self.lake_path())

    def session(self) -> SparkSession:
        """Start Spark, or return the session that runs."""
        from posthouse.pipeline.session import spark_session

        settings = self.settings()
        return spark_session(
            str(settings["pipeline.master"]), driver_memory_mb=int(str(settings["pipeline.driver_memory_mb"]))
        )

    def sources(self) -> tuple[str, ...]:
        """Return the sources given, or every store of this host; a usage error when there is none."""
        found = self.source or _stores_of_host(self.settings())
        if not found:
            raise error("usage", text="there is no store on this host", hint="Name one with --source FILE or URL.")
        return found

    def reach(self, relay: str | None = None) -> Reach:
        """Return how a relay is reached, with the key of this command."""
        return Reach(relay=relay, key_file=self.key_file)


#: The default of every command's `place`.
HERE = Place()


def _stores_of_host(settings: dict[str, Any]) -> tuple[str, ...]:
    from posthouse.files.home import home_directory

    candidates = [
        Path(str(settings["relay.data_dir"])).expanduser() / "relay.db",
        Path(str(settings["bus.dir"])).expanduser() / "bus.db",
        *sorted((home_directory(os.environ) / "daemon").glob("*/outbox.db")),
        *sorted((home_directory(os.environ) / "daemon").glob("*/inbox.db")),
    ]
    return tuple(str(path.absolute()) for path in candidates if path.is_file())
