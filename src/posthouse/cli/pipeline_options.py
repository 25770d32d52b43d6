"""The options of every pipeline command: the sources, the lake, the Spark master and the relay.

Without --source every store of this host is read: those of the relay, the bus and every daemon. Spark workers read
files directly and relays with a token that is requested here. The pipeline is imported inside functions, so that
`posthouse --help` does not load it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from posthouse.cli.config import Settings, load_settings, split_pair
from posthouse.cli.options import KeyFile, RelayOptions, key_path, load_key, parse_duration
from posthouse.model.errors import PosthouseError, error
from posthouse.model.settings_sources import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posthouse.model.usage import Prices
    from posthouse.pipeline.connector.source_access import Access
    from posthouse.pipeline.gold_reader import Selection
    from posthouse.pipeline.lake import Lake


_GROUP = Group("Pipeline", sort_key=4)
#: The option of commands that show cost.
PricesFile = Annotated[
    str | None,
    Parameter(name="--prices", help="File of prices per million tokens [default: ~/.posthouse/prices.toml]."),
]
#: The option of commands that audit.
Publishers = Annotated[
    str | None,
    Parameter(
        name="--publishers",
        help="Nodes whose published roots and erasures are trusted besides this one, separated by commas.",
    ),
]


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
            help="Spark master: local[N], `local[*]`, the URL of a cluster, or sc://HOST:PORT of Spark Connect "
            "[default: `local[*]`]."
        ),
    ] = None
    spark_conf: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, help="Spark setting, such as spark.executor.memory=4g. Repeatable."),
    ] = ()
    executor_python: Annotated[
        str | None,
        Parameter(help="Python of Spark's executors [default: PYSPARK_PYTHON, else the Python of this command]."),
    ] = None
    cds: Annotated[
        bool | None,
        Parameter(
            show_default=False,
            help="Start Spark from an archive of its classes, made once in the background [default: yes].",
        ),
    ] = None
    key_file: KeyFile = None

    def settings(self) -> Settings:
        """Return the settings; the options of this command override file and environment."""
        given = {
            "pipeline.lake": self.lake,
            "pipeline.master": self.master,
            "pipeline.executor_python": self.executor_python,
            "pipeline.cds": self.cds,
        }
        return load_settings(given)

    def open_lake(self) -> Lake:
        """Return the lake; it may not exist yet."""
        from posthouse.pipeline.lake import Lake

        return Lake(self.settings().text("pipeline.lake"))

    def session(self, *, is_brief: bool = False, settings: Mapping[str, str] | None = None) -> SparkSession:
        """Start Spark, or return the running session; `is_brief` for a command that takes seconds."""
        from posthouse.pipeline.session import spark_session

        own = self.settings()
        return spark_session(
            own.text("pipeline.master"),
            driver_memory_mb=own.integer("pipeline.driver_memory_mb"),
            settings={**(settings or {}), **self.spark_settings()},
            python=own.optional_text("pipeline.executor_python"),
            executor_environ=self.open_lake().storage.environment(),
            uses_cds=own.is_on("pipeline.cds"),
            is_brief=is_brief,
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

    def publishers(self, given: str | None = None) -> list[str]:
        """Return the nodes of the option or the setting, whose published roots and erasures count.

        A misspelled node is a usage error: the exit code must not look like that of an audit with findings.
        """
        from posthouse.model.node import is_node_id

        text = load_settings({"pipeline.publishers": given}).optional_text("pipeline.publishers") or ""
        nodes = text.replace(",", " ").split()
        if wrong := [each for each in nodes if not is_node_id(each)]:
            hint = (
                "Give `ed25519:` and 64 lower-case hexadecimal digits, as `posthouse keys show` prints it on that host."
            )
            raise error("usage", text=f"pipeline.publishers: {wrong[0]!r} is not a node id", hint=hint)
        return nodes

    def prices(self, given: str | None = None) -> Prices:
        """Return the price table that the option or the setting names; the default file need not exist."""
        from posthouse.model.usage import Prices

        settings = load_settings({"pipeline.prices": given})
        path = settings.path("pipeline.prices")
        if settings["pipeline.prices"].source is Source.DEFAULT and not path.exists():
            return Prices()
        return Prices.parse(read_text_of(path), str(path))

    def own_node(self) -> str:
        """Return the id of this node, "" if it has no key."""
        return load_key(self.key_file).node if key_path(self.key_file).exists() else ""

    def relay_options(self, relay: str | None = None) -> RelayOptions:
        """Return the options of a connection to a relay, with the key of this command."""
        return RelayOptions(relay=relay, key_file=self.key_file)


def read_content_of(path: Path) -> bytes:
    """Return the content of a file that an option or a setting names; raise a usage error if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as failure:
        reason = failure.strerror or str(failure)
        raise error("usage", text=f"{path} cannot be read: {reason}", hint="Check the name of the file.") from failure


def read_text_of(path: Path) -> str:
    """Return the text of such a file; raise a usage error if it is not UTF-8."""
    try:
        return read_content_of(path).decode()
    except UnicodeDecodeError as failure:
        hint = "Check the name of the file, or save it as UTF-8."
        raise error("usage", text=f"{path} is not text in UTF-8", hint=hint) from failure


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
_PERIOD_GROUP = Group("Period", sort_key=3)


@Parameter(name="*", group=_PERIOD_GROUP)
@dataclass(frozen=True)
class PeriodOptions:
    """The part of the history that a command reads."""

    since: Annotated[str | None, Parameter(help="First UTC day, as 2026-11-01, or how long ago: 7d, 12h.")] = None
    until: Annotated[str | None, Parameter(help="Last UTC day, as 2026-11-30, or how long ago: 1d.")] = None
    mesh: Annotated[str | None, Parameter(help="Only this mesh.")] = None
    agent: Annotated[str | None, Parameter(help="Only this agent: its name, NAME@HOST, or its id.")] = None

    def selection(self) -> Selection:
        """Return the selection; raise a usage error for an invalid day, or an end before the start."""
        from posthouse.pipeline.gold_reader import Selection

        first, last = _day_of(self.since, "--since"), _day_of(self.until, "--until")
        if first is not None and last is not None and last < first:
            raise error("usage", text=f"--until {last} is before --since {first}")
        return Selection(first, last, self.mesh, self.agent)


WHOLE = PeriodOptions()


def _day_of(text: str | None, option: str) -> str | None:
    """Return a UTC day from the text of an option: a day, or a duration before now."""
    from posthouse.model.clock import format_utc

    return None if text is None else format_utc(parse_moment(text, option)).partition("T")[0]


def parse_moment(text: str, option: str) -> int:
    """Return a time in nanoseconds: the start of a UTC day, or a duration before now; raise a usage error."""
    from datetime import UTC, datetime

    from posthouse.model.clock import system_clock
    from posthouse.model.limits import SECOND_NS

    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        return int(day.timestamp()) * SECOND_NS
    except ValueError:
        pass
    try:
        return system_clock().wall_ns() - round(parse_duration(text) * SECOND_NS)
    except PosthouseError as fault:
        hint = "Give a UTC day, as 2026-11-01, or how long ago: 7d, 12h."
        raise error("usage", text=f"{option} {text!r} is neither a day nor a duration", hint=hint) from fault


def open_sources(pipeline_options: PipelineOptions) -> list[Access]:
    """Return access to every source of a command; for a relay, request a token with the key of this node."""
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
