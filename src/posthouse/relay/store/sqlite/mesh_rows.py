"""Rows of meshes out of SQLite."""

from __future__ import annotations

from typing import Any

import apsw

from posthouse.relay.meshes.rows import (
    AccessRow,
    InviteRow,
    MemberRow,
    MeshRow,
    MeshRows,
    Role,
    TopicRow,
    Verdict,
)
from posthouse.sqlite.statements import Statements

MESHES = Statements("posthouse.relay.store.sqlite", "meshes.sql")


def read_mesh_rows(db: apsw.Connection) -> MeshRows:
    """Return all meshes with everything that belongs to them, as one snapshot sees them."""
    return MeshRows(
        meshes=[MeshRow(mesh, bool(is_open), *rest) for mesh, is_open, *rest in db.execute(MESHES.all_meshes)],
        members=[MemberRow(mesh, node, name, Role(role)) for mesh, node, name, role in db.execute(MESHES.all_members)],
        access=[_access_of(row) for row in db.execute(MESHES.all_access)],
        topics=[TopicRow(*row) for row in db.execute(MESHES.all_topics)],
        subscriptions=[(mesh, node, pattern) for mesh, node, pattern in db.execute(MESHES.all_subscriptions)],
        blocks=[(mesh, node, blocked) for mesh, node, blocked in db.execute(MESHES.all_blocks)],
    )


def invite_of(row: tuple[Any, ...] | None) -> InviteRow | None:
    """Return the invite in a row."""
    if row is None:
        return None
    invite_id, code_hash, mesh, role, uses_left, expires_at_ns, creator = row
    return InviteRow(invite_id, code_hash, mesh, Role(role), uses_left, expires_at_ns, creator)


def _access_of(row: tuple[Any, ...]) -> AccessRow:
    mesh, node, *verdicts = row
    return AccessRow(mesh, node, *(Verdict(text) for text in verdicts))
