"""The marker of a restore that goes on: a file beside the store that stands from before the first change of the
swap until after the last. A store beside a marker is neither the old nor the new one, and nobody may open it.
"""

from __future__ import annotations

import os
from pathlib import Path

from posthouse.files import fsync_dir, open_nofollow
from posthouse.model.errors import error


def marker_path(path: Path) -> Path:
    """Return the name of a store's marker."""
    return path.with_name(path.name + ".restoring")


def set_marker(path: Path) -> None:
    """Say, durably, that the store is being replaced."""
    os.close(open_nofollow(marker_path(path), os.O_WRONLY | os.O_CREAT))
    fsync_dir(path.parent)


def clear_marker(path: Path) -> None:
    """Say, durably, that the store is whole."""
    marker_path(path).unlink()
    fsync_dir(path.parent)


def refuse_half_restored(path: Path) -> None:
    """Refuse a store whose restore was interrupted."""
    if marker_path(path).exists():
        raise error("store_half_restored", path=str(path))
