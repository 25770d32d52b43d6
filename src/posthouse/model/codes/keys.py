"""Error codes of the area: Keys."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec

KEYS: tuple[ErrorSpec, ...] = ()
