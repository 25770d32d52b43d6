"""Checks of the arguments that programs pass to a Bus: a mistake raises value_invalid before anything is stored.

Subjects and ids have their own checks in the model; these are for the rest: numbers, handlers, and values of a type.
"""

from __future__ import annotations

import math

from posthouse.model.errors import error


def check_positive(name: str, value: object) -> None:
    """Raise value_invalid unless the value is a positive finite number, or None."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise error("value_invalid", name=name, reason=f"{value!r} is not a positive number")


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise value_invalid unless the value is a whole number of at least `minimum`."""
    if type(value) is not int or value < minimum:
        raise error("value_invalid", name=name, reason=f"{value!r} is not a whole number of at least {minimum}")


def check_handler(name: str, value: object) -> None:
    """Raise value_invalid unless the value can be called."""
    if not callable(value):
        reason = f"{type(value).__name__} is no function that takes a message"
        raise error("value_invalid", name=name, reason=reason)


def check_type(name: str, value: object, *types: type) -> None:
    """Raise value_invalid unless the value has one of these types, or is None."""
    if value is not None and not isinstance(value, types):
        wanted = " or ".join(kind.__name__ for kind in types)
        raise error("value_invalid", name=name, reason=f"{type(value).__name__} is not {wanted}")
