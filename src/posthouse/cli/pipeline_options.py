"""The options of every pipeline command: the sources, the lake, the Spark master and the relay.

Without --source every store of this host is read: those of the relay, the bus and every daemon. Spark workers read
files directly and relays with a token that is requested here. The pipeline is imported inside functions, so that
`posthouse --help` does not load it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from posthouse.cli.config import Settings, load_settings, split_pair
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
    """Sources, lake and Spark session; part of the signature of every pipeline command."""

    source: Annotated[
        tuple[str, ...],
        Parameter(
            negative=(),
            consume_multiple=True,
            show_default=False,
            help="File or directory of a store, or URL of a relay. Repeatable. Default: every store of this host.",
        ),
    ] = ()
    lake: Annotated[
        str | None,
        Parameter(
            help="Directory of the lake, or s3://BUCKET/PREFIX. Default: POSTHOUSE_PIPELINE_LAKE, else "
            "~/.posthouse/lake."
        ),
    ] = None
    master: Annotated[
        str | None,
        Parameter(
            help="Spark master: local[N], local[*], the URL of a cluster, or sc://HOST:PORT of Spark Connect "
            "[default: local[*]]."
        ),
    ] = None
    spark_conf: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="A setting of Spark: spark.executor.memory=4g. Repeatable."),
    ] = ()
    executor_python: Annotated[
        str | None,
        Parameter(help="Python of Spark's executors [default: PYSPARK_PYTHON, else the Python of this command]."),
    ] = None
    key_file: KeyFile = None

    def settings(self) -> Settings:
        """Return the settings; the options of this command override file and environment."""
        given = {
            "pipeline.lake": self.lake,
            "pipeline.master": self.master,
            "pipeline.executor_python": self.executor_python,
        }
        return load_settings(given)

    def open_lake(self) -> Lake:
        """Return the lake; it may not exist yet."""
        from posthouse.pipeline.lake import Lake

        return Lake(self.settings().text("pipeline.lake"))

    def session(self) -> SparkSession:
        """Start Spark, or return the running session."""
        from posthouse.pipeline.session import spark_session

        settings = self.settings()
        return spark_session(
            settings.text("pipeline.master"),
            driver_memory_mb=settings.integer("pipeline.driver_memory_mb"),
            settings=self.spark_settings(),
            python=settings.optional_text("pipeline.executor_python"),
            executor_environ=self.open_lake().storage.environment(),
        )

    def spark_settings(self) -> dict[str, str]:
        """Return the settings of Spark that the settings file and the options give."""
        lines = (self.settings().optional_text("pipeline.spark_conf") or "").splitlines()
        pairs = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
        found = dict(split_pair(pair, "--spark-conf") for pair in (*pairs, *self.spark_conf))
        if wrong := [name for name in found if not name.startswith("spark.")]:
            raise error("usage", text=f"{wrong[0]!r} is not a setting of Spark", hint="Their names start with spark.")
        return found

    def sources(self) -> tuple[str, ...]:
        """Return the given sources, or every store of this host; raise a usage error if there is none."""
        found = self.source or _stores_of_host(self.settings())
        if not found:
            raise error("usage", text="there is no store on this host", hint="Name one with --source FILE or URL.")
        return found

    def relay_options(self, relay: str | None = None) -> RelayOptions:
        """Return the options of a connection to a relay, with the key of this command."""
        return RelayOptions(relay=relay, key_file=self.key_file)


def _stores_of_host(settings: Settings) -> tuple[str, ...]:
    from posthouse.files import home_directory

    candidates = [
        settings.path("relay.data_dir") / "relay.db",
        settings.path("bus.dir") / "bus.db",
        *sorted((home_directory(os.environ) / "daemon").glob("*/outbox.db")),
        *sorted((home_directory(os.environ) / "daemon").glob("*/inbox.db")),
    ]
    return tuple(str(path.absolute()) for path in candidates if path.is_file())


#: The default of every command's `pipeline_options`.
DEFAULT_PIPELINE = PipelineOptions()


def open_sources(pipeline_options: PipelineOptions) -> list[Access]:
    """Return access to every source of a command; for a relay it requests a token with the key of this node."""
    from posthouse.pipeline.connector.source_access import Access, access_with_key, parse_sources

    found: list[Access] = []
    for address in parse_sources(pipeline_options.sources()):
        if address.is_relay:
            key, options = load_key(pipeline_options.key_file), pipeline_options.relay_options().options()
            found.append(access_with_key(address.url, key, options))
        else:
            found.append(Access(address.url))
    return found


def relays_of(pipeline_options: PipelineOptions) -> list[str]:
    """Return the relays among the sources of a command."""
    from posthouse.pipeline.connector.source_access import parse_sources

    return [address.url for address in parse_sources(pipeline_options.sources()) if address.is_relay]


RelayAddress = Annotated[
    str | None,
    Parameter(help="Address of the relay. Default: the first --source that is a URL, else your usual relay."),
]


def chosen_relay(pipeline_options: PipelineOptions, relay: str | None) -> RelayOptions:
    """Return the options of a connection to the given relay, or to the first source that is a relay."""
    given = relay or next(
        (each for each in pipeline_options.source if "://" in each and not each.startswith("file:")), None
    )
    return pipeline_options.relay_options(given)
