"""One call of the daemon's API: what is asked, and how the answer is read.

A call is a value that both clients, the plain one and the async one, can carry out. `is_repeatable` says that doing
it twice is the same as once: only such a call is sent again when a connection ends before the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from posthouse.client.problems import error_from
from posthouse.model.codes.registry import REGISTRY
from posthouse.model.errors import PosthouseError, error

T = TypeVar("T")
_FIXED = frozenset({"hint", "code", "detail"})
Parameters = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request to the daemon."""

    method: str
    path: str
    #: turns the decoded answer into its value
    read: Callable[[Any], T]
    query: Parameters = field(default_factory=dict)
    #: what is sent as JSON; None for nothing
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = True
    #: how long the daemon may hold the answer back because it was asked to
    wait_s: float = 0.0

    @property
    def target(self) -> str:
        """Return path and query as they go over the wire."""
        given = [(name, _text(value)) for name, value in self.query.items() if value is not None]
        return f"{self.path}?{urlencode(given, quote_via=quote, safe='')}" if given else self.path

    def encode(self) -> bytes | None:
        """Return the body of the request."""
        return None if self.body is None else msgspec.json.encode(self.body)

    def answer(self, status: int, data: bytes, where: str) -> T:
        """Return the value of an answer, or raise the refusal it stands for."""
        if not 200 <= status < 300:
            raise refusal(status, data, where)
        try:
            return self.read(msgspec.json.decode(data))
        except (ValueError, KeyError, TypeError) as fault:
            raise error("daemon_answer_invalid", daemon=where, reason=f"{self.path}: {fault}") from fault


def struct(kind: type[T]) -> Callable[[Any], T]:
    """Read an answer as a struct."""
    return lambda value: msgspec.convert(value, kind)


def items(kind: type[T], name: str = "items") -> Callable[[Any], list[T]]:
    """Read the list an answer carries."""
    return lambda value: msgspec.convert(value[name], list[kind])  # type: ignore[valid-type]


def plain(value: Any) -> dict[str, Any]:
    """Read an answer as the object it is."""
    return msgspec.convert(value, dict[str, Any])


def without_none(**given: Any) -> dict[str, Any]:
    """Return what was given, absent where it is None."""
    return {name: value for name, value in given.items() if value is not None}


def refusal(status: int, data: bytes, where: str) -> PosthouseError:
    """Return the error of an answer {error, hint, ...}."""
    try:
        told = msgspec.json.decode(data, type=dict[str, Any])
    except ValueError:
        told = {}
    code = told.pop("error", None)
    if not isinstance(code, str):
        return error("daemon_answer_invalid", daemon=where, reason=f"status {status} without an error")
    if code not in REGISTRY:
        return error_from(told | {"code": code, "status": status}, where)
    fields = {name: value for name, value in told.items() if name not in _FIXED}
    return error(code, hint=str(told["hint"]) if told.get("hint") else None, **fields)


def _text(value: str | int | float | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
