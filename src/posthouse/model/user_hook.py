"""Hooks of the user: `[[hook]]` of the settings file, and which events each one is for.

    [[hook]]
    name = "archive"
    event = "received"
    match = { agent = "claude", topic = "build.*" }
    command = "archive-message"
    timeout_s = 30

If you change the form: 1. keep old files readable, 2. docs/how-to/event-hooks.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import msgspec

from posthouse.model.errors import error

HOOK_KEY = "hook"
Event = Literal["received", "dead", "confirmed", "connected", "lost"]
_Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Match(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which events a hook is for: names or patterns with `*`; absent: all."""

    mesh: _Pattern | None = None
    agent: _Pattern | None = None
    topic: _Pattern | None = None
    #: name or node id of the sender
    from_: _Pattern | None = msgspec.field(default=None, name="from")

    def accepts(self, mesh: str, agents: Sequence[str], topic: str, senders: Sequence[str]) -> bool:
        """Return True if the hook is for an event; one of several agents or names of the sender is enough."""
        given = ((self.mesh, (mesh,)), (self.agent, agents), (self.topic, (topic,)), (self.from_, senders))
        return all(pattern is None or any(fnmatchcase(each, pattern) for each in values) for pattern, values in given)


class UserHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[hook]]`."""

    #: names the cursor: a hook with another name is a new hook
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    event: Event
    command: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
    match: Match = Match()
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3_600)] = 60.0


def parse_hooks(given: Any) -> tuple[UserHook, ...]:
    """Return the hooks of a settings file, or raise setting_invalid."""
    try:
        hooks = msgspec.convert(given, tuple[UserHook, ...])
    except msgspec.ValidationError as fault:
        raise error("setting_invalid", name=HOOK_KEY, source="the file", reason=str(fault)) from fault
    names = [hook.name for hook in hooks]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise error("setting_invalid", name=HOOK_KEY, source="the file", reason=f"two hooks have the name {twice}")
    return hooks
