"""Named cursors: how far a replay has come, in a small file of the lake, and on which terms it was begun.

A name stands for one selection and one destination; other terms under the same name are refused, because the cursor
would skip what it never sent. Written after the rows were accepted, never before: what is sent again after a failure is
known to whoever got it.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from posthouse.files import private_dir, write_atomic
from posthouse.model.errors import error

DIRECTORY = "replays"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Terms(msgspec.Struct, frozen=True):
    """What a replay sends where."""

    where: str
    to: str
    #: of the mesh that a topic is in; absent for the bus
    mesh: str | None = None


class Cursor(msgspec.Struct, frozen=True):
    """A place in history, right after one message."""

    terms: Terms
    at_ns: int = -1
    epoch: str = ""
    seq: int = -1
    #: how many were sent until here
    sent: int = 0
    #: how far the journal of a bus was when this was written
    bus_seq: int = 0

    @property
    def place(self) -> tuple[int, str, int]:
        return self.at_ns, self.epoch, self.seq


class Cursors:
    """The cursors of a lake."""

    def __init__(self, lake: Path) -> None:
        self._directory = lake / DIRECTORY

    def begin(self, name: str, terms: Terms) -> Cursor:
        """Return the cursor of a name, new or from before; raise replay_cursor_differs when its terms are others."""
        path = self._path(name)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Cursor)
        except FileNotFoundError:
            return Cursor(terms)
        except msgspec.DecodeError as fault:
            raise error("lake_damaged", table=f"{DIRECTORY}/{path.name}", reason=str(fault)) from fault
        for field in Terms.__struct_fields__:
            was = getattr(found.terms, field)
            if was != getattr(terms, field):
                raise error("replay_cursor_differs", name=name, field=field, was=was)
        return found

    def save(self, name: str, cursor: Cursor) -> None:
        """Say how far a replay has come."""
        private_dir(self._directory)
        write_atomic(self._path(name), msgspec.json.encode(cursor))

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise error("usage", text=f"{name!r} is no name of a replay", hint="Use letters, digits, - and _.")
        return self._directory / f"{name}.json"
