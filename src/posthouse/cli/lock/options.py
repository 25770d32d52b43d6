"""Arguments that the verbs of `posthouse lock` share, and how they show a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

if TYPE_CHECKING:
    from posthouse.client import LockGrant, LockStatus
    from posthouse.client.locks import LockSummary

Resource = Annotated[str, Parameter(help="The name of what is locked: any text of 1 to 512 bytes.")]
Token = Annotated[int, Parameter(validator=Number(gte=1), help="The fencing token that acquire told.")]
LeaseS = Annotated[float, Parameter(validator=Number(gte=1, lte=600), help="How long the lock is held unless renewed.")]
WaitS = Annotated[
    float | None, Parameter(validator=Number(gte=0, lte=600), show_default=False, help="How long to wait for it.")
]


def lock_value(lock: LockGrant | LockStatus | LockSummary) -> dict[str, Any]:
    """Return a lock as JSON shows it."""
    value: dict[str, Any] = msgspec.to_builtins(lock)
    return value


def grant_line(grant: LockGrant) -> str:
    """Return a grant as people see it."""
    return f"{grant.resource}  token {grant.token}  for {grant.lease_ms / 1000:g} s"
