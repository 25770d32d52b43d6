"""What a message cost: the documented fields of usage, and the price table that completes them.

    model          name of the model, as the program knows it
    input_tokens   tokens that the model read, cached ones included
    output_tokens  tokens that it wrote
    cached_tokens  those of input_tokens that came from a cache
    cost_usd       dollars, if the program knows them; otherwise prices give them
    task           what the tokens were spent on, in the sender's own words or ids
A message of a mesh carries them in `meta.usage` (snake_case), one of the bus in the payload's `usage` (camelCase). Meta
is never sealed: the relay and every reader see it. Usage is what senders claim; nothing verifies it. If you change a
field: docs/protocol.md, and the columns of silver_messages.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Any

import msgspec

from posthouse.model.envelope import Usage
from posthouse.model.errors import error

USAGE = "usage"
_MILLION = 1_000_000
_PRICES_HINT = 'Repair the table: ["MODEL"] with input, output and perhaps cached, in dollars per million tokens.'
_CAMEL = re.compile(r"_([a-z])")


def with_usage(meta: Mapping[str, Any] | None, usage: Usage | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a meta value with its usage added; raises value_invalid for usage of another form, or a second one."""
    if meta is not None and not isinstance(meta, Mapping):
        raise error("value_invalid", name="meta", reason="it is not an object")
    if usage is None:
        return None if meta is None else dict(meta)
    own = dict(meta or {})
    added = usage_fields(usage)
    if own.get(USAGE, added) != added:
        raise error("value_invalid", name="meta", reason="its member usage differs from the argument usage")
    return own | {USAGE: added}


def usage_fields(usage: Usage | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of usage as a message of a mesh has them, or raise value_invalid."""
    if not isinstance(usage, Usage):
        camel = {_CAMEL.sub(lambda found: found[1].upper(), str(name)): value for name, value in usage.items()}
        unknown = camel.keys() - set(Usage.__struct_encode_fields__)
        if unknown:
            raise error("value_invalid", name="usage", reason=f"it has no field {', '.join(sorted(unknown))}")
        try:
            usage = msgspec.convert(camel, Usage)
        except msgspec.ValidationError as fault:
            raise error("value_invalid", name="usage", reason=str(fault)) from fault
    found = {name: getattr(usage, name) for name in Usage.__struct_fields__}
    return {name: value for name, value in found.items() if value is not None and (value or name != "cached_tokens")}


#: The bound excludes infinity, with which no sum would be a finite number.
_Dollars = Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)]


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars per million tokens of one model."""

    input: _Dollars
    output: _Dollars
    #: of input tokens from a cache; None: as other input tokens
    cached: _Dollars | None = None


class Prices:
    """Prices by model; a name may have `*`, and an exact name counts before the longest pattern."""

    def __init__(self, prices: Mapping[str, Price] | None = None) -> None:
        self._exact = dict(prices or {})
        self._patterns = sorted((name for name in self._exact if "*" in name), key=len, reverse=True)

    @staticmethod
    def parse(text: str, path: str = "prices.toml") -> Prices:
        """Read a price table in TOML, or raise config_unreadable."""
        model = None
        try:
            found: dict[str, Price] = {}
            for model, given in tomllib.loads(text).items():
                found[model] = msgspec.convert(given, Price)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as fault:
            reason = str(fault) if model is None else f"{model}: {fault}"
            raise error("config_unreadable", path=path, reason=reason, hint=_PRICES_HINT) from fault
        return Prices(found)

    def find(self, model: str) -> Price | None:
        """Return the price of a model; None if the table does not have it."""
        if model in self._exact:
            return self._exact[model]
        return next((self._exact[name] for name in self._patterns if fnmatchcase(model, name)), None)

    def cost_usd(self, model: str, input_tokens: int, cached_tokens: int, output_tokens: int) -> float | None:
        """Return dollars; None without a price for the model."""
        price = self.find(model)
        if price is None:
            return None
        cached = price.input if price.cached is None else price.cached
        fresh = max(0, input_tokens - cached_tokens)
        return (fresh * price.input + cached_tokens * cached + output_tokens * price.output) / _MILLION
