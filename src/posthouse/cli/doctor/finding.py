"""What a check of the doctor reports: fine, worth a look, or broken, with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    name: str
    state: State
    text: str
    #: What to do about it; empty when it is fine.
    hint: str = ""


def ok(name: str, text: str) -> Finding:
    return Finding(name, "ok", text)


def warn(name: str, text: str, hint: str) -> Finding:
    return Finding(name, "warn", text, hint)


def fail(name: str, text: str, hint: str) -> Finding:
    return Finding(name, "fail", text, hint)
