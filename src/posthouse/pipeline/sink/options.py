"""Options of the sink: which relay, as which run, and where on the driver the key is.

They travel to executors with the writer, so they hold the path of a key file, never a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from posthouse.files.home import home_directory
from posthouse.model.errors import error
from posthouse.model.node import DEFAULT_MESH, validate_mesh_name

RUN_ID_MAX_BYTES = 255


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where rows go, and what makes a repeated run the same run."""

    relay: str
    run_id: str
    mesh: str = DEFAULT_MESH
    #: of the user on the driver: its key.json and its pins
    home: str = ""
    key_file: str | None = None
    tls_ca: str | None = None
    allow_plain: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SinkOptions:
        """Read the options of a write, or raise sink_option_invalid."""
        run_id = _needed(given, "run_id")
        if len(run_id.encode()) > RUN_ID_MAX_BYTES:
            raise error("sink_option_invalid", option="run_id", reason=f"it has more than {RUN_ID_MAX_BYTES} bytes")
        return cls(
            relay=_needed(given, "relay"),
            run_id=run_id,
            mesh=validate_mesh_name(given.get("mesh") or DEFAULT_MESH),
            home=given.get("home") or str(home_directory()),
            key_file=given.get("key_file"),
            tls_ca=given.get("tls_ca"),
            allow_plain=given.get("allow_plain", "false").lower() == "true",
        )

    def as_strings(self) -> dict[str, str]:
        """Return them as a write takes them."""
        found = {name: getattr(self, name) for name in ("relay", "run_id", "mesh", "home", "key_file", "tls_ca")}
        texts = {name: str(value) for name, value in found.items() if value}
        return texts | {"allow_plain": str(self.allow_plain).lower()}

    def key_path(self) -> Path:
        """Return the file of the key that signs."""
        return Path(self.key_file) if self.key_file else Path(self.home) / "key.json"


def _needed(given: Mapping[str, str], name: str) -> str:
    value = given.get(name)
    if not value:
        raise error("sink_option_invalid", option=name, reason="it is missing")
    return value
