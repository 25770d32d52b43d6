"""One route: what is asked for, by whom, with which types; the same values validate requests and write the OpenAPI.

Bodies and parameters are msgspec structs. A route knows no sockets; its handler gets a Call and returns an Answer.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posthouse.answer import Answer
    from posthouse.relay.http.call import Call

Handler = Callable[["Call"], Awaitable["Answer"]]


class Access(enum.Enum):
    """Who may ask."""

    ANYBODY = "anybody"
    #: whoever sent a token; what it may see is decided by the core
    NODE = "node"


@dataclass(frozen=True)
class Route:
    """A method, a path template and what belongs to it."""

    method: str
    #: parts in braces are parameters, one path segment each
    path: str
    handler: Handler
    summary: str
    access: Access = Access.NODE
    #: struct of the query parameters
    query: type[Any] | None = None
    #: structs of which the JSON body is one
    bodies: tuple[type[Any], ...] = ()
    #: success status -> type of the JSON answer, several as a tuple, or None when the answer is no JSON
    answers: dict[int, Any] = field(default_factory=dict)
    #: media type of an answer that is no JSON
    media_type: str = "application/json"
    #: whether `#<tag>` parameters may stand beside those of `query`
    has_tag_filters: bool = False
    #: whether it may wait for others: then it is no running request, and has no time of its own
    may_wait: bool = False

    @property
    def segments(self) -> list[str]:
        return self.path.split("/")[1:]

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters in the path."""
        return [segment[1:-1] for segment in self.segments if segment.startswith("{")]

    @property
    def name(self) -> str:
        """A name of its own among all routes."""
        words = [segment.strip("{}.") for segment in self.segments]
        return "_".join([self.method.lower(), *(word.replace(".", "_") for word in words)])
