"""Kinds of events: the number decides how an event is stored.

Normal events are all stored; of replaceable and addressable ones the latest per key counts; ephemeral ones are only
forwarded. Numbers outside the four ranges are refused.
"""

from __future__ import annotations

import enum

from posthouse.model.errors import error

MESSAGE = 1000
CONFIRMATION = 1001
KEY_ROTATION = 10001
PROFILE = 10002
PRESENCE = 20001
SIGNAL = 20002
AUTHENTICATION = 22242
LAKE_ROOT = 30101


class KindClass(enum.StrEnum):
    """How events of a kind are stored."""

    NORMAL = "normal"
    REPLACEABLE = "replaceable"
    EPHEMERAL = "ephemeral"
    ADDRESSABLE = "addressable"


REPLACEABLE_KINDS = range(10_000, 20_000)
EPHEMERAL_KINDS = range(20_000, 30_000)
ADDRESSABLE_KINDS = range(30_000, 40_000)
_CLASSES = (KindClass.NORMAL, KindClass.REPLACEABLE, KindClass.EPHEMERAL, KindClass.ADDRESSABLE)


def kind_class(kind: int) -> KindClass:
    """Return how events of a kind are stored, or raise kind_invalid."""
    if not 1 <= kind <= 39_999:
        raise error("kind_invalid", kind=kind)
    return _CLASSES[kind // 10_000]


def is_replacing(kind: int) -> bool:
    """Return True if the latest event of a kind replaces the others of its key."""
    return 10_000 <= kind <= 19_999 or 30_000 <= kind <= 39_999


def is_ephemeral(kind: int) -> bool:
    """Return True if events of a kind are forwarded and not stored."""
    return 20_000 <= kind <= 29_999


def is_addressable(kind: int) -> bool:
    """Return True if events of a kind need a d tag."""
    return 30_000 <= kind <= 39_999
