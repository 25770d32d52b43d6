"""Proofs: events of kind 22242 that show who holds a key, to one relay, for one challenge or invite.

The event comes here with structure, id and signature checked. Reading judges the rest but the challenge itself: kind,
the relay it is for, and that it was made now. A proof is never stored or passed on, and no other relay
takes it: the relay tag names this one.
"""

from __future__ import annotations

from dataclasses import dataclass

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import Event
from posthouse.model.kinds import AUTHENTICATION
from posthouse.model.limits import CREATED_AT_MAX_AHEAD_NS, SECOND_NS

FRESH_NS = CREATED_AT_MAX_AHEAD_NS  # either way: clocks that may publish may log in


@dataclass(frozen=True, slots=True)
class Proof:
    """Who signed, and what the tags say; a tag that is absent is None."""

    node: str
    challenge: str | None
    invite: str | None
    name: str | None


def read_proof(event: Event, relay: str, now_ns: int) -> Proof:
    """Return the proof in a verified event meant for `relay`, or raise proof_invalid."""
    if event.kind != AUTHENTICATION:
        raise _invalid(f"its kind is {event.kind}, not {AUTHENTICATION}")
    if _single(event, "relay") != relay:
        raise _invalid("it is not for this relay")
    if abs(event.created_at_ns - now_ns) > FRESH_NS:
        raise _invalid(f"its created_at_ns is more than {FRESH_NS // SECOND_NS} s away from the relay's clock")
    return Proof(event.pubkey, _single(event, "challenge"), _single(event, "invite"), _single(event, "name"))


def _single(event: Event, name: str) -> str | None:
    tags = [tag for tag in event.tags if tag[0] == name]
    if not tags:
        return None
    if len(tags) > 1 or len(tags[0]) != 2:
        raise _invalid(f"it needs exactly one {name} tag with one value")
    return tags[0][1]


def _invalid(reason: str) -> PosthouseError:
    return error("proof_invalid", reason=reason)
