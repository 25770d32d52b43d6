"""Access rules of the bus: which sender may write to which endpoint.

Rules are ordered by priority, highest first; at equal priority deny precedes allow, then file order decides. The first
rule whose patterns match sender and endpoint decides; without one the write is allowed. A rule file with one invalid
entry is refused as a whole: an ignored deny rule would allow access. The bus reads and watches the file.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

import msgspec

from posthouse.model.errors import PosthouseError, error
from posthouse.model.limits import SAFE_INTEGER_MAX
from posthouse.model.strict_json import parse_json
from posthouse.model.subjects import matches, validate_subject


class Action(enum.StrEnum):
    """The effect of a rule on a matching write."""

    ALLOW = "allow"
    DENY = "deny"


class AccessRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule: senders and endpoints as patterns."""

    from_: str = msgspec.field(name="from")
    to: str
    action: Action
    priority: int

    def __post_init__(self) -> None:
        validate_subject(self.from_, allow_wildcards=True)
        validate_subject(self.to, allow_wildcards=True)
        action: object = self.action
        if action not in ("allow", "deny"):
            raise error("value_invalid", name="action", reason=f"{action!r} is neither allow nor deny")
        msgspec.structs.force_setattr(self, "action", Action(action))
        if type(self.priority) is not int or abs(self.priority) > SAFE_INTEGER_MAX:
            raise error("value_invalid", name="priority", reason=f"{self.priority!r} is not an integer")

    def matches(self, sender: str, endpoint: str) -> bool:
        """Return True if the rule applies to this sender and endpoint."""
        return matches(sender, self.from_) and matches(endpoint, self.to)


class AccessRules:
    """An ordered set of rules."""

    def __init__(self, rules: Iterable[AccessRule] = ()) -> None:
        #: in file order
        self.rules = tuple(rules)
        self._ordered = sorted(self.rules, key=lambda rule: (-rule.priority, rule.action is Action.ALLOW))

    def deciding_rule(self, sender: str, endpoint: str) -> AccessRule | None:
        """Return the rule that decides, or None if no rule applies."""
        for rule in self._ordered:
            if rule.matches(sender, endpoint):
                return rule
        return None

    def allows(self, sender: str, endpoint: str) -> bool:
        """Return True if the sender may write to the endpoint."""
        rule = self.deciding_rule(sender, endpoint)
        return rule is None or rule.action is Action.ALLOW

    def with_rule(self, rule: AccessRule) -> AccessRules:
        """Return the rules with one more; a rule with the same patterns is replaced."""
        return AccessRules([*self.without_rule(rule.from_, rule.to).rules, rule])

    def without_rule(self, from_: str, to: str) -> AccessRules:
        """Return the rules without those that have exactly these patterns."""
        return AccessRules(rule for rule in self.rules if (rule.from_, rule.to) != (from_, to))


def parse_rules(data: bytes) -> AccessRules:
    """Return the rules of a rule file, or raise access_rules_invalid for the first invalid entry."""
    try:
        entries = parse_json(data)
    except PosthouseError as fault:
        raise error("access_rules_invalid", where="the file", reason=str(fault)) from fault
    if type(entries) is not list:
        raise error("access_rules_invalid", where="the file", reason="it is not a list of rules")
    return AccessRules(_parse_rule(entry, number) for number, entry in enumerate(entries, start=1))


def format_rules(rules: AccessRules) -> bytes:
    """Return the bytes of a rule file, one rule per entry in the order given."""
    return msgspec.json.format(msgspec.json.encode(rules.rules), indent=2) + b"\n"


def _parse_rule(entry: Any, number: int) -> AccessRule:
    try:
        return msgspec.convert(entry, AccessRule)
    except (PosthouseError, msgspec.ValidationError) as fault:
        raise error("access_rules_invalid", where=f"entry {number}", reason=str(fault)) from fault
