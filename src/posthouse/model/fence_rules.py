"""Fence rules of a mesh: events of a kind whose d begins with a prefix need the fence of a resource.

The resource may contain {d}, which is replaced by the d tag of the event. Of several rules that fit an event the one
with the longest prefix decides, because an event has only one fence. A rule says which fence an event must name;
whether the token is valid is decided when the event is committed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.event import is_addressable, is_replacing
from posthouse.model.lease import FenceTag
from posthouse.model.limits import RESOURCE_MAX_BYTES
from posthouse.model.lock_scope import validate_resource

_PLACEHOLDER = "{d}"


class FenceRule(msgspec.Struct, frozen=True):
    """One rule of a mesh."""

    kind: int
    #: of the d tag; empty: every event of the kind
    d_prefix: str
    #: may contain {d}
    resource: str

    def resource_for(self, d: str) -> str:
        """Return the resource whose fence an event with this d tag needs."""
        return self.resource.replace(_PLACEHOLDER, d)


def validate_fence_rule(rule: FenceRule) -> FenceRule:
    """Return the rule unchanged, or raise fence_rule_invalid."""
    if not is_replacing(rule.kind):
        raise error("fence_rule_invalid", reason="only replaceable and addressable kinds can be fenced")
    if rule.d_prefix and not is_addressable(rule.kind):
        raise error("fence_rule_invalid", reason="replaceable events have no d tag, so the prefix must be empty")
    try:
        validate_resource(rule.resource)
        too_long = len(rule.d_prefix.encode("utf-8")) > RESOURCE_MAX_BYTES
    except (PosthouseError, UnicodeEncodeError) as fault:
        raise error("fence_rule_invalid", reason=f"the resource or the prefix is invalid: {fault}") from fault
    if too_long:
        raise error("fence_rule_invalid", reason=f"the prefix has more than {RESOURCE_MAX_BYTES} bytes")
    return rule


def deciding_rule(rules: Iterable[FenceRule], kind: int, d: str) -> FenceRule | None:
    """Return the rule with the longest prefix that fits an event of this kind and d tag, or None."""
    fitting = [rule for rule in rules if rule.kind == kind and d.startswith(rule.d_prefix)]
    return max(fitting, key=lambda rule: len(rule.d_prefix), default=None)


def missing_fence(rules: Iterable[FenceRule], kind: int, d: str, fence: FenceTag | None) -> str | None:
    """Return the resource whose fence an event needs and does not name, or None."""
    rule = deciding_rule(rules, kind, d)
    if rule is None:
        return None
    resource = rule.resource_for(d)
    return None if fence is not None and fence.resource == resource else resource
