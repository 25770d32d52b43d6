"""How the workers of pytest-xdist share the tests: whole files, or all files of one group together, the longest first.

The fixtures of a module are then made once, and everything that carries the mark `xdist_group("spark")` shares one
Spark in one worker. pytest-xdist 3.8 passes a group on in an attribute that tests of pytest 9.2 no longer have: without
this module it spreads every test on its own and says nothing. So the group is read from the source of the file.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_GROUP = re.compile(r'xdist_group\("([\w-]+)"\)')
#: groups, folders and files that take longest, in the order in which they start: what starts last should be short
_LONGEST = (
    "spark",
    "spark-programs",
    "tests/docs",
    "cli-daemon",
    "browser",
    "tests/faults",
    "tests/bench",
    "tests/cli",
    "tests/test_base_install.py",
    "tests/test_release.py",
    "tests/test_scheduling.py",
)


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out files and groups in the order in which the workers have collected them."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)  # without the log of the run it prints every step
        config.option.loadscopereorder = False  # else the unit with the most tests would go first

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return group_of(self.config.rootpath / path) or path


@cache
def group_of(path: Path) -> str | None:
    """Return the group that a file of tests is marked with."""
    found = _GROUP.search(path.read_text())
    return found[1] if found else None


def rank(item: pytest.Item) -> int:
    """Return the place of a test in the order of units: a small number for what takes long."""
    names = (group_of(item.path), item.nodeid)
    for place, name in enumerate(_LONGEST):
        if names[0] == name or names[1].startswith(name):
            return place
    return len(_LONGEST)
