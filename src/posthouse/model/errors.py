"""Every failure posthouse reports, as one small tree.

    PosthouseError
    ├── Refused      the caller may act on it: the input, a rule or a right says no
    ├── Transient    nothing was written; the same call may succeed later
    └── Fatal        the connection or the process has to end

What an error means lives in the registry (posthouse.model.codes): code, HTTP status, exit code, text and hint.
Raise with ``raise error("code", field=value)``; the registry picks the class, so a code can never
carry the wrong severity. Texts must not contain secrets: fields travel to peers and logs.
"""

from __future__ import annotations

from typing import Any, ClassVar

from posthouse.model.codes.registry import REGISTRY
from posthouse.model.codes.spec import ErrorSpec, Severity


class PosthouseError(Exception):
    """A failure with a code that is stable for ever, the fields of this case, and a hint."""

    severity: ClassVar[Severity]

    def __init__(self, spec: ErrorSpec, fields: dict[str, Any], hint: str | None = None) -> None:
        self.spec = spec
        self.code = spec.code
        self.fields = fields
        self.hint = hint or spec.hint
        super().__init__(spec.describe(fields))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.spec, self.fields, self.hint)

    def problem(self) -> dict[str, Any]:
        """Return the RFC 9457 body of this error; fields of the case stand beside the fixed members."""
        return self.fields | {
            "type": f"urn:posthouse:error:{self.code}",
            "title": self.spec.title,
            "status": self.spec.status,
            "code": self.code,
            "detail": str(self),
            "hint": self.hint,
        }


class Refused(PosthouseError):
    """The input, a rule or a right says no; repeating the call unchanged gives the same answer."""

    severity = Severity.REFUSED


class Transient(PosthouseError):
    """Nothing was written; the same call may succeed later."""

    severity = Severity.TRANSIENT


class Fatal(PosthouseError):
    """The connection or the process cannot go on."""

    severity = Severity.FATAL


_CLASSES: dict[Severity, type[PosthouseError]] = {cls.severity: cls for cls in (Refused, Transient, Fatal)}


def error(code: str, *, hint: str | None = None, **fields: Any) -> PosthouseError:
    """Build the error registered under `code`; a code that is not registered is a programming error."""
    spec = REGISTRY[code]
    return _CLASSES[spec.severity](spec, fields, hint)
