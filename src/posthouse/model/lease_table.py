"""The leases of one mesh in memory, as a store keeps them; a replay of the journal builds this table.

A name has a row for each lease that was not released; once the last one has ended, its row stays as released, so a
free name still shows its last holder and token. The replay of `relay check` and of the audit must keep rows exactly
as posthouse.relay.store does. Nothing is decided here; posthouse.model.lease has the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from posthouse.model.lease import LockRow, ended
from posthouse.model.lock_scope import Claim, covers, overlaps


def lease_from_record(resource: str, body: Mapping[str, Any]) -> LockRow:
    """Return the lease that a record of a grant or of a renewal states."""
    return LockRow(
        resource,
        body["owner"],
        body["token"],
        body["lease_ms"],
        body["deadline_boot_ns"],
        False,
        body.get("session", ""),
        body.get("tree", False),
        body.get("shared", False),
    )


class LeaseTable:
    """Leases by resource and holder."""

    def __init__(self, rows: Iterable[LockRow] = ()) -> None:
        self._names: dict[str, dict[tuple[str, str], LockRow]] = {}
        for row in rows:
            self.put(row)

    def __iter__(self) -> Iterator[LockRow]:
        return (row for name in list(self._names.values()) for row in list(name.values()))

    def find(self, resource: str, owner: str, session: str = "") -> LockRow | None:
        """Return the lease of a holder on a name, or None."""
        return self._names.get(resource, {}).get((owner, session))

    def put(self, row: LockRow) -> None:
        """Save a lease as it is."""
        self._names.setdefault(row.resource, {})[row.owner, row.session] = row

    def clear(self, resource: str) -> None:
        """Remove all leases of a name."""
        self._names.pop(resource, None)

    def grant(self, row: LockRow) -> None:
        """Save the lease of a new grant; the last lease of a free name makes room for it."""
        holders = self._names.setdefault(row.resource, {})
        for key in [key for key, each in holders.items() if each.is_released]:
            del holders[key]
        self.put(row)

    def end(self, resource: str, owner: str, session: str = "") -> LockRow | None:
        """Release a lease; its row stays only if the name has no other lease. Return the row, or None."""
        row = self.find(resource, owner, session)
        if row is None:
            return None
        holders = self._names[resource]
        if row.is_shared and any(each is not row and not each.is_released for each in holders.values()):
            del holders[owner, session]
        else:
            holders[owner, session] = ended(row)
        return row

    def overlapping(self, claims: Sequence[Claim]) -> list[LockRow]:
        """Return the unreleased leases that overlap one of these claims."""
        return [row for row in self if not row.is_released and any(overlaps(claim, row) for claim in claims)]

    def covering(self, resource: str) -> list[LockRow]:
        """Return the leases that cover a name, its last one if it is free."""
        return [row for row in self if covers(row, resource) and (row.resource == resource or not row.is_released)]
