"""The subscriptions of this process: which handlers a message reaches."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from posthouse.bus.results import SubscriptionView
from posthouse.model.envelope import Envelope
from posthouse.model.subjects import ONE, REST, is_pattern, validate_subject
from posthouse.model.trie import PatternTrie

Handler = Callable[[Envelope], Awaitable[Any] | Any]
Unsubscribe = Callable[[], Awaitable[None]]
_MOST_FOUND = 1_024  # subjects remembered: bounds the memory of a bus with many


class Subscription:
    """A handler and the pattern it listens to."""

    __slots__ = ("handler", "is_async", "pattern")

    def __init__(self, pattern: str, handler: Handler) -> None:
        self.pattern = validate_subject(pattern, allow_wildcards=True)
        self.handler = handler
        self.is_async = is_async(handler)


class Subscriptions:
    """All subscriptions of one open Bus."""

    def __init__(self) -> None:
        self._trie: PatternTrie[Subscription] = PatternTrie()
        #: what was found since the last change, by subject
        self._found: dict[str, list[Subscription]] = {}

    def add(self, subscription: Subscription) -> int:
        """Add a subscription and return the ticket that removes it."""
        self._found.clear()
        return self._trie.add(subscription.pattern, subscription)

    def remove(self, ticket: int) -> None:
        self._found.clear()
        self._trie.remove(ticket)

    def match(self, subject: str) -> list[Subscription]:
        """Return the subscriptions a message with this subject reaches, oldest first."""
        found = self._found.get(subject)
        if found is None:
            if len(self._found) >= _MOST_FOUND:
                self._found.clear()
            found = self._found[subject] = self._trie.match(subject)
        return found

    def reach(self, endpoint: str) -> bool:
        """Tell whether any message of the endpoint could reach a subscription."""
        if not is_pattern(endpoint):
            return bool(self._trie.match(endpoint))
        return any(overlaps(endpoint, pattern) for pattern, _ in self._trie.items())

    def views(self) -> list[SubscriptionView]:
        return [SubscriptionView(pattern) for pattern, _ in self._trie.items()]


def is_async(handler: Callable[..., Any]) -> bool:
    """Tell whether calling the handler gives something to await, as far as can be seen."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def overlaps(endpoint: str, pattern: str) -> bool:
    """Tell whether a subject below the endpoint pattern `prefix.>` can match `pattern`."""
    prefix = endpoint.split(".")[:-1]
    tokens = pattern.split(".")
    for want, token in zip(tokens, prefix, strict=False):
        if want == REST:
            return True
        if want not in (ONE, token):
            return False
    return len(tokens) > len(prefix)
