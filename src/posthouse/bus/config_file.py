"""config.json: the operator's reliability settings, taken up while the bus runs.

The file wins over the arguments of Bus. What it does not name keeps its value; a file that is not valid keeps
everything and is reported. Removing it keeps what was set.
"""

from __future__ import annotations

from pathlib import Path

from posthouse.bus.file_stamp import Stamp, read_stamped, stamp_of
from posthouse.bus.reserve import Policy
from posthouse.log import get_log
from posthouse.model.errors import PosthouseError, error
from posthouse.model.reliability import merge_reliability

log = get_log(__name__)


class ConfigFile:
    """Keeps `policy.reliability` equal to what the file says."""

    def __init__(self, path: Path, policy: Policy) -> None:
        self._path = path
        self._policy = policy
        self._stamp: Stamp | None = None
        #: why the file is not in force, or None
        self.fault: PosthouseError | None = None
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
        except OSError as failure:
            self._report(error("reliability_invalid", reason=failure.strerror or str(failure)))
        except PosthouseError as fault:
            self._report(fault)

    def _report(self, fault: PosthouseError) -> None:
        self.fault = fault
        log.error("config_keeps_former_values", path=str(self._path), reason=str(fault))
