"""Which relay a command of the pipeline speaks to: the option, else the source that is one, else the usual one."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.pipeline.place import Place
from posthouse.cli.reach import Reach

Relay = Annotated[
    str | None, Parameter(help="The relay to speak to; without it the --source that is a URL, else your usual one.")
]


def reach_relay(place: Place, relay: str | None) -> Reach:
    """Return how the relay is reached, with the key of this command."""
    given = relay or next((each for each in place.source if "://" in each and not each.startswith("file:")), None)
    return place.reach(given)
