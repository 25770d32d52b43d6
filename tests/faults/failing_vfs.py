"""A file system under SQLite that fails on demand, so that full and broken disks can be tried without privileges.

Registered under a name of its own; connections opened with `vfs=name` go through it. It passes everything on to
the real file system until a test sets a failure.
"""

from __future__ import annotations

import secrets

import apsw

_ERRORS: dict[str, tuple[type[apsw.Error], int]] = {
    "full": (apsw.FullError, apsw.SQLITE_FULL),
    "busy": (apsw.BusyError, apsw.SQLITE_BUSY),
    "write": (apsw.IOError, apsw.SQLITE_IOERR_WRITE),
    "sync": (apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
}


class FailingVFS(apsw.VFS):
    """The real file system, with failures that a test switches on and off."""

    def __init__(self) -> None:
        self.name = f"failing-{secrets.token_hex(4)}"
        #: What writing fails with, and for files that end how; None: it does not.
        self.write_failure: str | None = None
        self.write_suffix = "-wal"
        #: Bytes that may still be written before write_failure strikes.
        self.room = 0
        self.sync_failure: str | None = None
        self.sync_suffix = "-wal"
        self.syncs = 0
        super().__init__(self.name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, vfs: FailingVFS, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._vfs = vfs
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        vfs = self._vfs
        if vfs.write_failure and self._name.endswith(vfs.write_suffix):
            vfs.room -= len(data)
            if vfs.room < 0:
                raise _failure(vfs.write_failure)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        vfs = self._vfs
        if vfs.sync_failure and self._name.endswith(vfs.sync_suffix):
            raise _failure(vfs.sync_failure)
        vfs.syncs += 1
        super().xSync(flags)


def _failure(name: str) -> apsw.Error:
    kind, code = _ERRORS[name]
    failure = kind(f"{name} failure of the test")
    setattr(failure, "extendedresult", code)  # noqa: B010 - apsw reads it, its type stubs do not say so
    return failure
