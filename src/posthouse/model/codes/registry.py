"""The one registry of error codes, gathered from the area files beside it."""

from __future__ import annotations

from itertools import chain

from posthouse.model.codes.agents import AGENTS
from posthouse.model.codes.bus import BUS
from posthouse.model.codes.client import CLIENT
from posthouse.model.codes.command import COMMAND
from posthouse.model.codes.daemon import DAEMON
from posthouse.model.codes.edge import EDGE
from posthouse.model.codes.giving import GIVING
from posthouse.model.codes.keys import KEYS
from posthouse.model.codes.pinch import PINCH
from posthouse.model.codes.pipeline import PIPELINE
from posthouse.model.codes.relay import RELAY
from posthouse.model.codes.spec import ErrorSpec
from posthouse.model.codes.storage import STORAGE
from posthouse.model.codes.values import VALUES

#: Areas in the order the reference shows them.
AREAS: dict[str, tuple[ErrorSpec, ...]] = {
    "Values": VALUES,
    "Keys": KEYS,
    "Storage": STORAGE,
    "Bus": BUS,
    "Relay": RELAY,
    "Relay's edge": EDGE,
    "Pinch": PINCH,
    "Client": CLIENT,
    "Daemon": DAEMON,
    "Pipeline": PIPELINE,
    "Giving back": GIVING,
    "Agents": AGENTS,
    "Command line": COMMAND,
}


def _gather() -> dict[str, ErrorSpec]:
    specs: dict[str, ErrorSpec] = {}
    for spec in chain.from_iterable(AREAS.values()):
        if spec.code in specs:
            raise ValueError(f"error code {spec.code} is registered twice")
        specs[spec.code] = spec
    return specs


REGISTRY: dict[str, ErrorSpec] = _gather()
