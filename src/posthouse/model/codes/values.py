"""Error codes of the area: Values."""

from __future__ import annotations

from posthouse.model.codes.spec import ErrorSpec

VALUES: tuple[ErrorSpec, ...] = ()
