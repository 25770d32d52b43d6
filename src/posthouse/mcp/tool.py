"""One MCP tool and one call of it: definition, schema, arguments, progress, idempotency key.

A handler uses the daemon only. The sender is never an argument: it is the agent of the connection. The protocol has no
idempotency key, so it is an argument, or comes from `_meta`: under our own name, or under that of a client known to
repeat the same id when it repeats a call; else it is the id of the request within its connection. It becomes the
client_message_id (request_id of a lock), which the daemon stores on disk, so it survives a restart of any process.
Every agent pays tokens for each definition at every turn: schemas have no titles and no descriptions, and only answers
that programs evaluate have a schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from posthouse.client.daemon import AsyncDaemonClient
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.model.message import validate_client_message_id
from posthouse.model.usage import usage_fields

PROGRESS_EVERY_S = 5.0  # often enough for clients that give up on silence, rare enough to cost nothing
#: callback(seconds passed, seconds in all, message)
ReportProgress = Callable[[float, float, str], Awaitable[None]]
#: usage of a message in `_meta`, from programs that know it better than their model
META_USAGE = "posthouse/usage"
#: idempotency keys in `_meta`, preferred one first; the second is the id that Claude Code gives each use of a tool
META_NAMES = ("posthouse/idempotencyKey", "claudecode/toolUseId")


def meta_key(meta: Mapping[str, Any]) -> str | None:
    """Return the idempotency key in `_meta` of a request; an invalid one is refused, never ignored."""
    for name in META_NAMES:
        value = meta.get(name)
        if value is not None:
            return validate_client_message_id(value if isinstance(value, str) else str(value))
    return None


def meta_usage(meta: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the usage in `_meta` of a request; an invalid one is refused, never ignored."""
    value = meta.get(META_USAGE)
    if value is None:
        return None
    if not isinstance(value, dict):
        raise error("value_invalid", name=META_USAGE, reason="it is not an object")
    return usage_fields(value)


@dataclass(frozen=True)
class ToolCall:
    """The context of one call, which a handler gets with its arguments."""

    tool: str
    daemon: AsyncDaemonClient
    #: the calling agent
    agent: str
    #: reports to the client that the call is still waiting
    report_progress: ReportProgress
    #: idempotency key, unless the arguments have one
    key: str
    #: longest wait of a call
    wait_max_s: int
    #: directory that the agent's program works in, if it is known
    project: str | None = None
    #: usage that the request carries in `_meta`
    usage: Mapping[str, Any] | None = None
    progress_every_s: float = PROGRESS_EVERY_S
    clock: Clock = field(default_factory=system_clock)

    def invalid(self, reason: str) -> Exception:
        """Return the error for arguments that fit the schema but not each other."""
        return error("tool_arguments_invalid", tool=self.tool, reason=reason)

    def check_wait(self, name: str, seconds: float) -> float:
        """Return a wait, or refuse one that is longer than a call may take."""
        if seconds > self.wait_max_s:
            raise self.invalid(f"{name} is above {self.wait_max_s}")
        return seconds

    def since_s(self, start_ns: int) -> float:
        """Return the seconds since a time of the boot clock."""
        return (self.clock.boot_ns() - start_ns) / SECOND_NS

    @asynccontextmanager
    async def with_progress(self, total_s: float, message: str) -> AsyncIterator[None]:
        """Report progress until the block ends or the call is cancelled."""
        start_ns = self.clock.boot_ns()

        async def report() -> None:
            while True:
                await asyncio.sleep(self.progress_every_s)
                await self.report_progress(min(self.since_s(start_ns), total_s), total_s, message)

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


@dataclass(frozen=True)
class ToolSpec:
    """One tool."""

    name: str
    description: str
    arguments: type[msgspec.Struct]
    answer: type[msgspec.Struct]
    run: Callable[[ToolCall, Any], Awaitable[msgspec.Struct]]
    #: True: the tool changes nothing, not even which messages are unread
    is_read_only: bool = False
    #: True: the definition has the schema of the answer, and answers come as structured content too
    has_output_schema: bool = False
    #: arguments whose maximum is the longest wait of a call
    bounded_by_wait: tuple[str, ...] = ()
    #: arguments that the tool accepts but does not list: programs give them, models cannot know them
    unlisted: tuple[str, ...] = ()

    def definition(self, wait_max_s: int) -> dict[str, Any]:
        """Return the tool as `tools/list` shows it."""
        arguments = schema_of(self.arguments)
        for name in self.bounded_by_wait:
            arguments["properties"][name]["maximum"] = wait_max_s
        for name in self.unlisted:
            del arguments["properties"][name]
        shown: dict[str, Any] = {"name": self.name, "description": self.description, "inputSchema": arguments}
        if self.has_output_schema:
            shown["outputSchema"] = schema_of(self.answer)
        shown["annotations"] = {"readOnlyHint": True} if self.is_read_only else {"destructiveHint": False}
        return shown

    def read_arguments(self, given: object) -> msgspec.Struct:
        """Validate arguments; null counts as absent, and a number may be given as text."""
        if given is not None and not isinstance(given, dict):
            raise error("tool_arguments_invalid", tool=self.name, reason="they are not an object")
        present = {name: value for name, value in (given or {}).items() if value is not None}
        try:
            return msgspec.convert(present, self.arguments, strict=False)
        except msgspec.ValidationError as fault:
            raise error("tool_arguments_invalid", tool=self.name, reason=str(fault)) from fault

    def result(self, answer: msgspec.Struct) -> dict[str, Any]:
        """Return the result of a call."""
        shown: dict[str, Any] = {"content": [{"type": "text", "text": msgspec.json.encode(answer).decode()}]}
        if self.has_output_schema:
            shown["structuredContent"] = msgspec.to_builtins(answer)
        return shown


#: keywords that reading the arguments enforces anyway; in a schema they cost every agent tokens at every turn
_OMITTED_KEYWORDS = frozenset(
    {"title", "default", "description", "additionalProperties", "minimum", "exclusiveMinimum"}
)
_REFERENCE = "#/$defs/"


def schema_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a struct with all references inlined."""
    schema = msgspec.json.schema(struct)
    inlined: dict[str, Any] = _inline(schema, schema.get("$defs", {}))
    return inlined


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].removeprefix(_REFERENCE)], definitions)
    return {name: _member(name, value, definitions) for name, value in node.items() if _is_kept(name, value)}


def _member(name: str, value: Any, definitions: dict[str, Any]) -> Any:
    # the names below `properties` are field names, not keywords
    if name == "properties":
        return {field: _inline(schema, definitions) for field, schema in value.items()}
    return _inline(value, definitions)


def _is_kept(name: str, value: Any) -> bool:
    return name not in _OMITTED_KEYWORDS and not (name == "required" and value == [])
