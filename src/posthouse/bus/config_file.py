"""config.json: the operator's reliability settings, taken up while the bus runs.

The file wins over the arguments of Bus. What it does not name keeps its value; a file that is not valid keeps
everything and is reported. Removing it keeps what was set.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from posthouse.bus.file_stamp import Stamp, read_stamped, stamp_of
from posthouse.bus.reserve import Policy
from posthouse.model.errors import PosthouseError
from posthouse.model.reliability import merge_reliability

log = structlog.get_logger(__name__)


class ConfigFile:
    """Keeps `policy.reliability` equal to what the file says."""

    def __init__(self, path: Path, policy: Policy) -> None:
        self._path = path
        self._policy = policy
        self._stamp: Stamp | None = None
        #: why the file is not in force, or None
        self.fault: str | None = None
        self.refresh()

    def refresh(self) -> None:
        """Notice a changed file."""
        stamp = stamp_of(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        self.fault = None
        try:
            data = read_stamped(self._path)
            if data is not None:
                self._policy.reliability = merge_reliability(self._policy.reliability, data)
        except (OSError, PosthouseError) as fault:
            self.fault = str(fault)
            log.error("config_keeps_former_values", path=str(self._path), reason=self.fault)
