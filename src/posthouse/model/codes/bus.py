"""Error codes of the area: Bus."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec

BUS: tuple[ErrorSpec, ...] = ()
