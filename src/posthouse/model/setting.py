"""The declaration of one setting, and reading a value that was given for it.

Reading validates a value completely: type, bounds and choices. Text from the environment or the command line is
converted to the type; a value from a file must already have it. The registry of all settings is in settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Value = bool | int | float | str | None
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting."""

    name: str
    #: bool, int, float or str
    type: type[bool] | type[int] | type[float] | type[str]
    #: None: unset by default
    default: Value
    help: str
    unit: str = ""
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    #: True: a running relay applies a change on SIGHUP
    is_live: bool = False

    @property
    def area(self) -> str:
        return self.name.partition(".")[0]

    @property
    def key(self) -> str:
        return self.name.partition(".")[2]

    @property
    def environment(self) -> str:
        return "POSTHOUSE_" + self.name.replace(".", "_").upper()

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    def read(self, given: Any) -> Value:
        """Return the value if it fits type and bounds, or raise ValueError with the reason."""
        value = self._typed(given)
        if self.choices and value not in self.choices:
            raise ValueError(f"{given!r} is not one of {', '.join(self.choices)}")
        if isinstance(value, str) and (not value or "\0" in value):
            raise ValueError("it is empty or contains a NUL character")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_bounds(value)
        return value

    def read_text(self, text: str) -> Value:
        """Return the value of a string from the environment or the command line."""
        return self.read(self._from_text(text.strip()))

    def _typed(self, given: Any) -> Value:
        if self.type is float and type(given) is int:
            return float(given)
        if type(given) is not self.type:
            raise ValueError(f"{given!r} is not {_ARTICLES[self.type]}")
        value: Value = given
        return value

    def _check_bounds(self, value: float) -> None:
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        if self.min is not None and value < self.min:
            raise ValueError(f"{value} is below {self.min}")
        if self.max is not None and value > self.max:
            raise ValueError(f"{value} is above {self.max}")

    def _from_text(self, text: str) -> Any:
        if self.type is bool:
            word = text.lower()
            return True if word in _TRUE else False if word in _FALSE else text
        if self.type is str:
            return text
        try:
            return self.type(text)
        except ValueError:
            return text


_ARTICLES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
}
