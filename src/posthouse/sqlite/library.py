"""Which SQLite this process uses: the one inside apsw, never the system's.

Versions before 3.51.3 can corrupt a database in WAL mode when a commit resets the WAL while another connection
checkpoints; posthouse does both all day, so an older library is a defect of the installation.
"""

from __future__ import annotations

import apsw

SAFE_VERSION = (3, 51, 3)


def library_version() -> tuple[int, int, int]:
    """Return the version of the SQLite library in use."""
    major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split(".")[:3])
    return major, minor, patch
