"""Which store of a relay a command works on, and whether the relay may run meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from posthouse.cli.settings import load
from posthouse.model.errors import error

#: The option of every command about a relay's store.
DataDir = Annotated[
    Path | None,
    Parameter(name="--data-dir", help="The relay's directory; without it POSTHOUSE_RELAY_DATA_DIR or the default."),
]


def data_dir(given: Path | None) -> Path:
    """Return the directory of the relay."""
    value = load({"relay.data_dir": None if given is None else str(given)})["relay.data_dir"].value
    return Path(str(value)).expanduser().absolute()


def store_path(given: Path | None, *, is_needed: bool = True) -> Path:
    """Return the file of the relay's store; without one a usage error says where it was looked for."""
    from posthouse.relay.store.sqlite import FILE_NAME

    path = data_dir(given) / FILE_NAME
    if is_needed and not path.exists():
        raise error("usage", text=f"there is no store {path}", hint="Give the relay's directory with --data-dir.")
    return path


@contextmanager
def stopped(given: Path | None) -> Iterator[Path]:
    """Hold the relay's own lock and yield its directory; store_in_use while a relay runs there."""
    from posthouse.files import private_dir
    from posthouse.sqlite.presence import Presence

    directory = private_dir(data_dir(given))
    lock = Presence(directory / "relay", exclusive=True)
    try:
        yield directory
    finally:
        lock.close()
