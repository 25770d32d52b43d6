"""The limits in force: those of this process, each with its value and source, and those of the other processes.

Every open Bus writes its limits as JSON into its lock file in procs/, again whenever config.json changes them, so that
`posthouse bus limits` can show where processes differ. No decision depends on these reports: a file that cannot be read
is left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from posthouse.bus.data_directory import is_alive
from posthouse.bus.options import BusOptions
from posthouse.model.reliability import Reliability

_FILE = "config.json"
_ARGUMENT = "argument"
_DEFAULT = "default"


class Limit(msgspec.Struct, frozen=True):
    """One limit in force; `source` is default, file, environment, argument or config.json."""

    name: str
    value: Any
    source: str


class ProcessLimits(msgspec.Struct, frozen=True):
    """The limits of one open Bus."""

    pid: int
    limits: tuple[Limit, ...]
    #: why config.json is not in force, or None
    problem: str | None = None

    def encode(self) -> bytes:
        """Return the report for the lock file."""
        return _ENCODER.encode(self)

    def differences(self, other: ProcessLimits) -> list[Limit]:
        """Return the limits of this process whose value differs in the other one."""
        values = {limit.name: limit.value for limit in other.limits}
        return [limit for limit in self.limits if values.get(limit.name) != limit.value]


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ProcessLimits)


def own_limits(
    options: BusOptions, reliability: Reliability, named: frozenset[str], problem: str | None
) -> ProcessLimits:
    """Return the limits of this process; `named` are those that config.json names."""
    base, default = flatten(options.reliability), flatten(Reliability())
    limits = []
    for name, value in flatten(reliability).items():
        source = _FILE if name in named else _ARGUMENT if base[name] != default[name] else _DEFAULT
        limits.append(Limit(name, value, source))
    limits += [Limit(name, value, options.sources[name]) for name, value in options.settings.items()]
    return ProcessLimits(os.getpid(), tuple(limits), problem)


def flatten(reliability: Reliability) -> dict[str, Any]:
    """Return the limits by their names in config.json, such as `rateLimit.maxPerWindow`."""
    sections: Mapping[str, Mapping[str, Any]] = msgspec.to_builtins(reliability)
    return {f"{section}.{name}": value for section, fields in sections.items() for name, value in fields.items()}


def read_process_limits(procs: Path) -> list[ProcessLimits]:
    """Return the limits of every process that has the bus open, by pid."""
    found = []
    for path in procs.iterdir():
        try:
            found.append(_DECODER.decode(path.read_bytes()))
        except (OSError, msgspec.MsgspecError):  # the process is just starting or ending, or is of an older version
            continue
        if not is_alive(procs, path.name):
            found.pop()
    return sorted(found, key=lambda report: report.pid)
