"""Who may do what in a mesh: a role gives rights, access rows take some away.

A row for a node counts instead of the one for everybody; neither can give what the role does not. Administering
cannot be taken by a row, so that a mesh always has somebody who can repair it.
"""

from __future__ import annotations

import enum

from posthouse.relay.meshes.rows import AccessRow, Role, Verdict


class Right(enum.StrEnum):
    """What can be allowed in a mesh."""

    READ = "read"
    WRITE = "write"
    LOCK = "lock"
    ADMINISTER = "administer"


Rights = frozenset[Right]

NONE: Rights = frozenset()
_OF_ROLE: dict[Role, Rights] = {
    Role.READER: frozenset({Right.READ}),
    Role.MEMBER: frozenset({Right.READ, Right.WRITE, Right.LOCK}),
    Role.ADMIN: frozenset(Right),
}


def rights_of(role: Role, access: AccessRow | None) -> Rights:
    """Return the rights of a role, less what the access row that counts denies."""
    rights = _OF_ROLE[role]
    if access is None:
        return rights
    verdicts = {Right.READ: access.read, Right.WRITE: access.write, Right.LOCK: access.lock}
    return rights - {right for right, verdict in verdicts.items() if verdict is Verdict.DENY}
