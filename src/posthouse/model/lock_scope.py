"""The names that a lock covers, and which locks exclude each other: pure rules over names, modes and holders.

A plain lock covers its own name. A tree also covers every name below it: `a` covers `a/b` and `a/b/c`, not `ab`.
Names are compared as bytes and split at `/`; a tree has at most 32 levels, so a name has at most 32 trees above it.
A holder is a session of a node. Two claims conflict if they overlap, their holders differ and not both are shared.
A waiting request keeps its place before every later one that it conflicts with, and before every later one of its own
session that it overlaps. These rules do not know which of two requests is earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from posthouse.model.errors import error
from posthouse.model.limits import LOCK_RESOURCES_MAX, RESOURCE_MAX_BYTES, SESSION_MAX_BYTES, TREE_LEVELS_MAX


class Scope(Protocol):
    """A name, and whether the names below it belong to it."""

    @property
    def resource(self) -> str: ...
    @property
    def is_tree(self) -> bool: ...


class Claim(Scope, Protocol):
    """A scope that a session of a node holds or asks for."""

    @property
    def is_shared(self) -> bool: ...
    @property
    def owner(self) -> str: ...
    @property
    def session(self) -> str: ...


ClaimT = TypeVar("ClaimT", bound=Claim)


class Asked(msgspec.Struct, frozen=True):
    """The claim of a request to one resource."""

    resource: str
    owner: str
    session: str = ""
    is_tree: bool = False
    is_shared: bool = False


def covers(scope: Scope, resource: str) -> bool:
    """Return True if a lock of this scope protects the resource."""
    name = scope.resource
    return name == resource or (scope.is_tree and resource.startswith(name) and resource[len(name)] == "/")


def overlaps(one: Scope, other: Scope) -> bool:
    """Return True if two scopes have a name in common."""
    return covers(one, other.resource) or covers(other, one.resource)


def is_same_holder(one: Claim, other: Claim) -> bool:
    """Return True if one session of one node makes both claims."""
    return one.owner == other.owner and one.session == other.session


def conflicts(one: Claim, other: Claim) -> bool:
    """Return True if the two claims cannot be held at the same time."""
    return not (one.is_shared and other.is_shared) and not is_same_holder(one, other) and overlaps(one, other)


def keeps_order(one: Claim, other: Claim) -> bool:
    """Return True if the later of two waiting claims must wait for the earlier one.

    Two claims of one session do so even if both are shared: the session can get only one of them.
    """
    return overlaps(one, other) and (not (one.is_shared and other.is_shared) or is_same_holder(one, other))


def first_conflict(claims: Sequence[Claim], others: Iterable[ClaimT]) -> ClaimT | None:
    """Return the first of the other claims that conflicts with one of these, or None."""
    for other in others:
        for claim in claims:
            if conflicts(claim, other):
                return other
    return None


def trees_above(resource: str) -> list[str]:
    """Return the names whose trees would cover the resource, its own name excepted, from the shortest on."""
    names: list[str] = []
    slash = resource.find("/", 1)
    while slash != -1 and len(names) < TREE_LEVELS_MAX:
        names.append(resource[:slash])
        slash = resource.find("/", slash + 1)
    return names


def range_below(tree: str) -> tuple[str, str]:
    """Return the first name below a tree, and the first one after all of them."""
    return f"{tree}/", f"{tree}0"  # 0 follows / in every encoding of text


def validate_resource(resource: str) -> str:
    """Return the resource name unchanged, or raise resource_invalid: any text of 1 to 512 bytes."""
    try:
        size = len(resource.encode("utf-8"))
    except (UnicodeEncodeError, AttributeError) as fault:
        raise error("resource_invalid", reason="it is not valid text") from fault
    if not 1 <= size <= RESOURCE_MAX_BYTES:
        raise error("resource_invalid", reason=f"it has {size} bytes, not 1 to {RESOURCE_MAX_BYTES}")
    return resource


def validate_resources(resources: Sequence[str], *, is_tree: bool) -> None:
    """Raise resource_invalid if these names cannot be locked by one request."""
    for resource in resources:
        validate_resource(resource)
        if is_tree and (levels := resource.count("/") + 1) > TREE_LEVELS_MAX:
            raise error("resource_invalid", reason=f"a tree has at most {TREE_LEVELS_MAX} levels, not {levels}")
    if len(resources) == 1:
        return
    if len(resources) > LOCK_RESOURCES_MAX:
        raise error("resource_invalid", reason=f"one request has {len(resources)} names, not 1 to {LOCK_RESOURCES_MAX}")
    if (twice := _covered_twice(resources, is_tree)) is not None:
        raise error("resource_invalid", reason=f"the request covers {twice!r} twice")


def _covered_twice(resources: Sequence[str], is_tree: bool) -> str | None:
    names = set(resources)
    if len(names) < len(resources):
        return next(name for name in resources if resources.count(name) > 1)
    return next((name for name in resources if is_tree and not names.isdisjoint(trees_above(name))), None)


def validate_session(session: str) -> str:
    """Return the session unchanged, or raise session_invalid."""
    valid = type(session) is str and (not session or session.isprintable())
    if not valid or len(session.encode("utf-8")) > SESSION_MAX_BYTES:
        raise error("session_invalid", limit=SESSION_MAX_BYTES)
    return session
