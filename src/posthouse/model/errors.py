"""Every error that posthouse reports, as one small tree, and the registry of error codes.

    PosthouseError   code, fields, hint, severity
    ├── Refused      the caller may act: the input is invalid, a rule or a missing right forbids the call
    │   └── PublishRefused    inside a handler of the bus; carries the result (posthouse.bus.results)
    ├── Transient    nothing was written; the same call may succeed later
    │   └── RequestTimeout    a TimeoutError too (posthouse.bus.results)
    └── Fatal        the connection or the process has to end

    area (posthouse.model.codes)   codes about
    Values                         invalid JSON, subjects, ids, events, messages, filters
    Keys                           key files, signatures, sealed content
    Storage                        SQLite stores, journal cursors, backup and restore
    Bus                            endpoints, requests, mailboxes
    Relay, Relay's edge, Pinch     accept, locks, meshes; HTTP and WebSocket; the Pinch wire
    Copies                         followers and mirrors of a relay
    Client, Daemon                 connections and trust; outbox, inbox and the local interface
    Pipeline, Giving back          lake, runs and audit; archive, sink and replay
    Agents, Command line           MCP tools and agent configuration; usage, settings, unexpected failures

Raise with ``raise error("code", field=value)``: the registry (one area file each in posthouse.model.codes) picks the
class, so a code never carries the wrong severity. Fields travel to peers and logs: they must not contain secrets.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, ClassVar

from posthouse.model.codes.agent_errors import AGENTS
from posthouse.model.codes.bus_errors import BUS
from posthouse.model.codes.client_errors import CLIENT
from posthouse.model.codes.command_errors import COMMAND
from posthouse.model.codes.console_errors import CONSOLE
from posthouse.model.codes.copy_errors import COPIES
from posthouse.model.codes.daemon_errors import DAEMON
from posthouse.model.codes.http_errors import EDGE
from posthouse.model.codes.key_errors import KEYS
from posthouse.model.codes.pinch_errors import PINCH
from posthouse.model.codes.pipeline_errors import GIVING, PIPELINE
from posthouse.model.codes.relay_errors import RELAY
from posthouse.model.codes.spec import ErrorSpec, Severity
from posthouse.model.codes.storage_errors import STORAGE
from posthouse.model.codes.value_errors import VALUES

#: Areas in the order of the reference.
AREAS: dict[str, tuple[ErrorSpec, ...]] = {
    "Values": VALUES,
    "Keys": KEYS,
    "Storage": STORAGE,
    "Bus": BUS,
    "Relay": RELAY,
    "Relay's edge": EDGE,
    "Copies": COPIES,
    "Pinch": PINCH,
    "Client": CLIENT,
    "Daemon": DAEMON,
    "Pipeline": PIPELINE,
    "Giving back": GIVING,
    "Agents": AGENTS,
    "Console": CONSOLE,
    "Command line": COMMAND,
}


def _specs_by_code() -> dict[str, ErrorSpec]:
    specs: dict[str, ErrorSpec] = {}
    for spec in chain.from_iterable(AREAS.values()):
        if spec.code in specs:
            raise ValueError(f"error code {spec.code} is registered twice")
        specs[spec.code] = spec
    return specs


ERROR_CODES: dict[str, ErrorSpec] = _specs_by_code()


class PosthouseError(Exception):
    """A failure with a stable code, the fields of this case, and a hint for the reader."""

    severity: ClassVar[Severity]

    def __init__(self, spec: ErrorSpec, fields: dict[str, Any], hint: str | None = None) -> None:
        self.spec = spec
        self.code = spec.code
        self.fields = fields
        self.hint = hint or spec.advise(fields)
        super().__init__(spec.describe(fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.spec, self.fields, self.hint)

    def problem(self) -> dict[str, Any]:
        """Return the problem+json body (RFC 9457) of this error: the fixed members and the fields of the case."""
        return self.fields | {
            "type": f"urn:posthouse:error:{self.code}",
            "title": self.spec.title,
            "status": self.spec.status,
            "code": self.code,
            "detail": str(self),
            "hint": self.hint,
        }


class Refused(PosthouseError):
    """Invalid input, a rule or a missing right forbids the call; repeating it unchanged fails again."""

    severity = Severity.REFUSED


class Transient(PosthouseError):
    """Nothing was written; the same call may succeed later."""

    severity = Severity.TRANSIENT


class Fatal(PosthouseError):
    """The connection or the process cannot continue."""

    severity = Severity.FATAL


_CLASSES: dict[Severity, type[PosthouseError]] = {cls.severity: cls for cls in (Refused, Transient, Fatal)}


def error(code: str, *, hint: str | None = None, **fields: Any) -> PosthouseError:
    """Build the error registered under `code`; an unregistered code is a programming error (KeyError)."""
    spec = ERROR_CODES[code]
    return _CLASSES[spec.severity](spec, fields, hint)


#: The fixed members of a problem; the fields of the error are added to them.
PROBLEM_MEMBERS = frozenset({"type", "title", "status", "code", "detail", "hint", "instance"})


def error_from_problem(problem: Any) -> PosthouseError | None:
    """Return the error that a problem object (RFC 9457) describes; None if it has no registered code."""
    if not isinstance(problem, dict) or not isinstance(problem.get("code"), str) or problem["code"] not in ERROR_CODES:
        return None
    fields = {name: value for name, value in problem.items() if name not in PROBLEM_MEMBERS}
    hint = problem.get("hint")
    return error(problem["code"], hint=hint if isinstance(hint, str) else None, **fields)


def copy_error(failure: PosthouseError) -> PosthouseError:
    """Return a copy to raise: one exception object raised for many callers would collect all their tracebacks."""
    return type(failure)(failure.spec, failure.fields, failure.hint)
