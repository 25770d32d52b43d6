"""Error codes of the area: Relay."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec

RELAY: tuple[ErrorSpec, ...] = ()
