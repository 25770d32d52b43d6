"""The shape of one tool: its name, what a model reads about it, its structs, its hints and its handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from posthouse.mcp.call import ToolCall


@dataclass(frozen=True)
class ToolSpec:
    """One tool."""

    name: str
    #: every word is paid for at each turn of every agent
    description: str
    arguments: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    run: Callable[[ToolCall, Any], Awaitable[msgspec.Struct]]
    #: changes nothing, not even what counts as read
    is_read_only: bool = False
    #: arguments whose upper bound is how long a call may wait
    bounded_by_wait: tuple[str, ...] = ()
