"""The context that the pages of a console share, and the request for a page.

Pages and actions are different routes: a page is a GET without side effects, an action is a POST of a form. Every
action names the console as its program (VIA), so that journals distinguish it from an action of the command line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from posthouse.console.access import Access
from posthouse.console.rendering import Renderer
from posthouse.console.upstream import Upstream
from posthouse.http.call import Call, WaitLimit
from posthouse.http.response import HttpResponse
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError, error

#: how journals name actions of the console
VIA = "console"
_STREAMS_MAX = 64
_FORM_FIELDS_MAX = 2_000


@dataclass(slots=True)
class ConsoleContext:
    """The parts of a running console."""

    access: Access
    upstream: Upstream
    renderer: Renderer
    clock: Clock
    is_stopping: bool = False
    streams: WaitLimit = field(default_factory=lambda: WaitLimit(_STREAMS_MAX, "console_busy"))


@dataclass(slots=True)
class ConsoleCall(Call[ConsoleContext]):
    """A request for a page or an action."""

    @property
    def upstream(self) -> Upstream:
        """The daemon and the relay."""
        return self.context.upstream

    def parameter(self, name: str, default: str = "") -> str:
        """Return a parameter of the address, the last one if it is given twice."""
        return dict(self.target.query).get(name, default)

    async def form(self) -> Form:
        """Return the fields of the form in the body."""
        data = await self.read(self.limits.max_bytes)
        try:
            pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
        except (UnicodeDecodeError, ValueError) as fault:
            raise error("console_form_invalid", reason=str(fault)[:200]) from fault
        return Form(pairs)

    def page(self, template: str, **values: Any) -> HttpResponse:
        """Return a page from a template."""
        return self.context.renderer.page(template, **values)

    def notice(self, text: str, *failures: PosthouseError) -> HttpResponse:
        """Return a notice of the result of an action; it makes the page reload its content."""
        response = self.page("notice.html", text=text, failures=failures)
        response.headers["HX-Trigger"] = "console-changed"
        return response


class Form:
    """The fields of a form; one may occur several times."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs

    def one(self, name: str) -> str:
        """Return a required field; raises console_form_invalid if it is missing or empty."""
        found = self.optional(name)
        if not found:
            raise error("console_form_invalid", reason=f"{name} is missing")
        return found

    def optional(self, name: str) -> str:
        """Return a field, or an empty string."""
        return next((value for each, value in self._pairs if each == name), "")

    def all(self, name: str) -> list[str]:
        """Return every value of a field."""
        return [value for each, value in self._pairs if each == name]
