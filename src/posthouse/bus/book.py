"""The endpoints of a bus as this process knows them, ready to resolve a subject.

The rows in bus.db are the authority; the book is read again whenever their version has changed, inside the
transaction that uses it, so a publish never resolves against a former state. A literal endpoint wins over patterns;
among patterns the longest prefix does. Patterns take no part in a wildcard publish.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import apsw

from posthouse.bus.results import Endpoint
from posthouse.bus.statements import SQL
from posthouse.model.subjects import REST, is_pattern, prefixes
from posthouse.model.trie import LiteralTrie


class EndpointBook:
    """All endpoints, by subject, hash and number."""

    def __init__(self) -> None:
        self.version = -1
        self.by_subject: dict[str, Endpoint] = {}
        self.by_number: dict[int, Endpoint] = {}
        self.by_hash: dict[str, Endpoint] = {}
        #: numbers of the endpoints that only carry replies
        self.private: set[int] = set()
        self._literals: LiteralTrie[Endpoint] = LiteralTrie()

    def refresh(self, db: apsw.Connection, version: int) -> None:
        """Read the endpoints again if the version says they changed."""
        if version == self.version:
            return
        self.load(db)
        self.version = version

    def load(self, db: apsw.Connection) -> None:
        """Read all endpoints."""
        endpoints = [Endpoint(*row) for row in db.execute(SQL.endpoints)]
        private: Any = db.execute(SQL.private_numbers)
        self.private = {number for (number,) in private}
        self.by_subject = {endpoint.subject: endpoint for endpoint in endpoints}
        self.by_number = {endpoint.number: endpoint for endpoint in endpoints}
        self.by_hash = {endpoint.hash: endpoint for endpoint in endpoints}
        self._literals = LiteralTrie()
        for endpoint in endpoints:
            if not is_pattern(endpoint.subject):
                self._literals.add(endpoint.subject, endpoint)

    def resolve(self, subject: str) -> list[Endpoint]:
        """Return the endpoints a publish to `subject` reaches."""
        if is_pattern(subject):
            return self._literals.match(subject)
        found = self.by_subject.get(subject) or next(self.catch_alls(subject), None)
        return [] if found is None else [found]

    def catch_alls(self, subject: str) -> Iterator[Endpoint]:
        """Yield the pattern endpoints that could take the subject, longest prefix first."""
        for prefix in prefixes(subject):
            if prefix != subject and (found := self.by_subject.get(f"{prefix}.{REST}")):
                yield found
        if found := self.by_subject.get(REST):
            yield found
