"""Traces of messages with OpenTelemetry: each step becomes a span, exported by OTLP over HTTP in the background.

A message carries the span that sent it as its tag `traceparent` (W3C Trace Context); relay, daemon and reader add
their own spans below it. Whether a trace is recorded is decided once, where it begins. Spans name meshes, ids and
codes, never content. Nothing of OpenTelemetry is imported unless a tracer is opened; without one a message only
carries on the span of a program that uses OpenTelemetry itself. Losing spans never delays or loses a message.
"""

from __future__ import annotations

import enum
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from posthouse.extras import install_hint
from posthouse.model.clock import Clock, system_clock
from posthouse.model.errors import error
from posthouse.model.limits import SECOND_NS
from posthouse.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

#: the tag of a message, the header of a request to the daemon, and the name in `_meta` of a call of MCP
TRACEPARENT = "traceparent"
_FORM = re.compile(r"00-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})")
_EXPORT_S = 5.0  # for one attempt, and so for the last one when a process ends
_TRACES_PATH = "/v1/traces"
_COMPLAIN_NS = 60 * SECOND_NS  # between two lines in the log about a collector that does not answer
_SYSTEM = {"messaging.system": "posthouse"}


class Role(enum.Enum):
    """The role of a span; the value is the name of OpenTelemetry's span kind."""

    SENDER = "PRODUCER"
    RECEIVER = "CONSUMER"
    SERVER = "SERVER"
    CLIENT = "CLIENT"


def valid_traceparent(text: str | None) -> str | None:
    """Return a traceparent that has the right form; None for any other text, which tracing ignores."""
    return text if text is not None and _FORM.fullmatch(text) is not None else None


#: the span of the request that this task serves
_served: ContextVar[str | None] = ContextVar("served_traceparent", default=None)


@contextmanager
def continuing(traceparent: object) -> Iterator[None]:
    """Let requests that this task sends in the block continue the trace of the request that it serves.

    Anything but a valid traceparent changes nothing.
    """
    parent = valid_traceparent(traceparent) if isinstance(traceparent, str) else None
    token = _served.set(parent or _served.get())
    try:
        yield
    finally:
        _served.reset(token)


def current_traceparent() -> str | None:
    """Return the span of the request that this task serves, or of this program, if it uses OpenTelemetry itself."""
    served = _served.get()
    if served is not None:
        return served
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    return _format(trace.get_current_span().get_span_context())


def _format(context: Any) -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


class Span:
    """A step that has begun."""

    def __init__(self, span: OtelSpan, clock: Clock) -> None:
        self._span = span
        self._clock = clock

    @property
    def traceparent(self) -> str | None:
        """The span as the parent of others."""
        return _format(self._span.get_span_context())

    def end(self, failure: BaseException | str | None = None) -> None:
        """End the step; a failure, or its code, marks it as failed."""
        if failure is not None:
            from opentelemetry.trace import Status, StatusCode

            code = failure if isinstance(failure, str) else getattr(failure, "code", type(failure).__name__)
            self._span.set_attribute("error.type", code)
            self._span.set_status(Status(StatusCode.ERROR, code))
        self._span.end(self._clock.wall_ns())


class Tracer:
    """Makes the spans of one process and exports them; made by `open_tracer`."""

    def __init__(self, provider: TracerProvider, clock: Clock) -> None:
        from opentelemetry import trace

        self._provider = provider
        self._tracer = provider.get_tracer("posthouse", __version__)
        self._clock = clock
        self._trace = trace

    def now_ns(self) -> int:
        """Return the time that spans begin and end with."""
        return self._clock.wall_ns()

    def start(
        self,
        name: str,
        role: Role,
        parent: str | None = None,
        attributes: Mapping[str, str | int] | None = None,
        *,
        started_ns: int | None = None,
    ) -> Span:
        """Begin a step below a parent, or a new trace without one; `started_ns` if it has begun earlier."""
        trace = self._trace
        above = trace.INVALID_SPAN if parent is None else trace.NonRecordingSpan(_context_of(parent))
        span = self._tracer.start_span(
            name,
            context=trace.set_span_in_context(above),
            kind=trace.SpanKind[role.value],
            attributes={**_SYSTEM, **(attributes or {})},
            start_time=self._clock.wall_ns() if started_ns is None else started_ns,
        )
        return Span(span, self._clock)

    def record(
        self,
        name: str,
        role: Role,
        parent: str | None,
        started_ns: int,
        attributes: Mapping[str, str | int] | None = None,
        failure: BaseException | str | None = None,
    ) -> None:
        """Record a step of a traced message that ends now; nothing for a message without a trace."""
        if valid_traceparent(parent) is not None:
            self.start(name, role, parent, attributes, started_ns=started_ns).end(failure)

    def close(self) -> None:
        """Export the remaining spans, for a few seconds at most; blocks."""
        self._provider.shutdown()


def _context_of(traceparent: str) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    found = _FORM.fullmatch(traceparent)
    assert found is not None  # callers pass valid ones only
    flags = TraceFlags(int(found["flags"], 16))
    return SpanContext(int(found["trace"], 16), int(found["span"], 16), is_remote=True, trace_flags=flags)


def open_tracer(url: str, service: str, *, ratio: float = 1.0, clock: Clock | None = None) -> Tracer:
    """Return a tracer that exports to a collector, such as http://127.0.0.1:4318, as the service of this name.

    `ratio` is the share of new traces that are recorded. Headers, such as a token of the collector, come from
    OTEL_EXPORTER_OTLP_HEADERS. Raises extra_missing without the extra `otel`, and otlp_url_invalid.
    """
    endpoint = otlp_endpoint(url)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
    except ModuleNotFoundError as missing:
        raise error("extra_missing", library="opentelemetry-sdk", hint=install_hint("otel")) from missing
    clock = clock or system_clock()
    _log_failures(endpoint, clock)
    resource = Resource.create({"service.name": service, "service.version": __version__})
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(ratio), resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=_EXPORT_S)))
    return Tracer(provider, clock)


def otlp_endpoint(url: str) -> str:
    """Return where traces are posted, or raise otlp_url_invalid; a URL without a path gets the usual one."""
    parts = urlsplit(url)
    try:
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.username is not None or parts.fragment:
        raise error("otlp_url_invalid", url=url)
    return parts._replace(path=_TRACES_PATH).geturl() if parts.path in ("", "/") else url


class _FailureLog(logging.Handler):
    """Logs at intervals that spans are lost, in place of the library's lines for every batch."""

    def __init__(self, endpoint: str, clock: Clock) -> None:
        super().__init__(logging.WARNING)
        self._endpoint = endpoint
        self._clock = clock
        self._said_ns: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        now_ns = self._clock.boot_ns()
        if self._said_ns is None or now_ns - self._said_ns >= _COMPLAIN_NS:
            self._said_ns = now_ns
            from posthouse.log import get_log  # loads structlog and rich, which a sending command does not need

            get_log(__name__).warning("traces_not_exported", endpoint=self._endpoint, reason=record.getMessage()[:300])


def _log_failures(endpoint: str, clock: Clock) -> None:
    library = logging.getLogger("opentelemetry")
    library.propagate = False
    library.handlers = [each for each in library.handlers if not isinstance(each, _FailureLog)]
    library.addHandler(_FailureLog(endpoint, clock))
