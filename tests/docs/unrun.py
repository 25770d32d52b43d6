"""Blocks of `console` or `python` that are not run, and why. Everything else in these languages is run."""

from __future__ import annotations

#: Page -> first line of the block's body -> reason.
UNRUN: dict[str, dict[str, str]] = {}
