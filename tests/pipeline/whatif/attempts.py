"""Short words for attempts and changes."""

from __future__ import annotations

from typing import Any

from posthouse.pipeline.whatif.proposed_rules import Attempt, Change

SECOND_NS = 1_000_000_000


def attempt(number: int, at_s: float = 0, **given: Any) -> Attempt:
    """Return the attempt that was decided after record `number`."""
    fields: dict[str, Any] = {
        "kind": "stored",
        "seq": number,
        "boot_ns": round(at_s * SECOND_NS),
        "id": f"id-{number:04d}",
        "sender": "crowd.one",
        "said_to": "work.a",
        "subject": "work.a",
        "place": "aaaaaaaaaaaa",
        "rated": True,
        "was": None,
        "was_times": 0,
        "minute": 0,
        "created_ms": round(at_s * 1000),
        "budget": None,
        "is_return": False,
        "record": number + 1,
    }
    return Attempt(**fields | given)


def refused(number: int, at_s: float, code: str, times: int = 1, **given: Any) -> Attempt:
    """Return attempts that were refused at one moment."""
    rated = {"rated": code == "rate_limited"} | given
    return attempt(number, at_s, kind="refused", id="", was=code, was_times=times, **rated)


def change(seq: int, kind: str, id_: str = "", at_s: float = 0) -> Change:
    """Return a record."""
    return Change(kind, seq, round(at_s * SECOND_NS), id_)
