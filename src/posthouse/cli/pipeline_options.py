"""What every pipeline command takes: the sources, the lake, where Spark computes, and the relay.

Without --source every store of this host is read: the relay's, the bus's and those of every daemon. Workers reach
files directly and relays with a token that is requested here. Imports of the pipeline stay inside functions, so that
`posthouse --help` loads none of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from posthouse.cli.config import load_settings
from posthouse.cli.options import KeyFile, RelayOptions, load_key
from posthouse.model.errors import error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.pipeline.connector.source_access import Access
    from posthouse.pipeline.lake import Lake


_GROUP = Group("Pipeline", sort_key=4)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True)
class PipelineOptions:
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
        found = load_settings({"pipeline.lake": lake, "pipeline.master": self.master})
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

    def relay_options(self, relay: str | None = None) -> RelayOptions:
        """Return how a relay is reached, with the key of this command."""
        return RelayOptions(relay=relay, key_file=self.key_file)


def _stores_of_host(settings: dict[str, Any]) -> tuple[str, ...]:
    from posthouse.files import home_directory

    candidates = [
        Path(str(settings["relay.data_dir"])).expanduser() / "relay.db",
        Path(str(settings["bus.dir"])).expanduser() / "bus.db",
        *sorted((home_directory(os.environ) / "daemon").glob("*/outbox.db")),
        *sorted((home_directory(os.environ) / "daemon").glob("*/inbox.db")),
    ]
    return tuple(str(path.absolute()) for path in candidates if path.is_file())


#: The default of every command's `pipeline_options`.
DEFAULT_PIPELINE = PipelineOptions()


def open_sources(pipeline_options: PipelineOptions) -> list[Access]:
    """Return every source of a command; a relay is asked for a token with the key of this node."""
    from posthouse.pipeline.connector.source_access import Access, access_with_key, parse_sources

    found: list[Access] = []
    for address in parse_sources(pipeline_options.sources()):
        if address.is_relay:
            found.append(
                access_with_key(
                    address.url, load_key(pipeline_options.key_file), pipeline_options.relay_options().options()
                )
            )
        else:
            found.append(Access(address.url))
    return found


def relays_of(pipeline_options: PipelineOptions) -> list[str]:
    """Return the relays among the sources of a command."""
    from posthouse.pipeline.connector.source_access import parse_sources

    return [address.url for address in parse_sources(pipeline_options.sources()) if address.is_relay]


RelayAddress = Annotated[
    str | None, Parameter(help="The relay to speak to; without it the --source that is a URL, else your usual one.")
]


def chosen_relay(pipeline_options: PipelineOptions, relay: str | None) -> RelayOptions:
    """Return how the relay is reached, with the key of this command."""
    given = relay or next(
        (each for each in pipeline_options.source if "://" in each and not each.startswith("file:")), None
    )
    return pipeline_options.relay_options(given)
