"""New SQLite stores of tests: copies of a store that was migrated once in this process.

Thousands of tests open a new store, and its thirty migrations would take longer than most of these tests. A copy has
the schema and nothing else; the store begins its own epoch in it, as in any new store. A store on a VFS of a test is
not copied, nor one whose directory cannot be written: the store itself says so.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posthouse.journal import store
from posthouse.sqlite.connection import Durability, open_writer
from posthouse.sqlite.schema import migrate
from posthouse.storage.sql_files import Component

#: files of stores without an epoch, by the migrations that made them: some tests leave migrations out
_images: dict[tuple[object, ...], bytes] = {}


def _image(components: tuple[Component, ...], may_shrink: bool) -> bytes:
    key = (may_shrink, *((component.name, component.migrations) for component in components))
    if key not in _images:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "store.db"
            with contextlib.closing(open_writer(path, Durability.NORMAL, may_shrink=may_shrink)) as db:
                migrate(db, path, components)
            _images[key] = path.read_bytes()
    return _images[key]


@contextlib.contextmanager
def copied_schemas() -> Iterator[None]:
    """Let each new store of this process begin as a copy."""
    prepare = store._OpenStore._prepare

    def copy_first(self: Any, components: tuple[Component, ...], *, may_shrink: bool) -> None:
        if self._vfs is None and not self.path.exists():
            with contextlib.suppress(OSError):
                self.path.touch(0o600)
                self.path.chmod(0o600)  # the umask may have taken bits
                self.path.write_bytes(_image(components, may_shrink))
        prepare(self, components, may_shrink=may_shrink)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._OpenStore, "_prepare", copy_first)
        yield
