"""Records of meshes, their members and their topics; `mesh` names the mesh, `actor` who changed it."""

from __future__ import annotations

from posthouse.journal.records.shape import RecordType

_ACCESS = {"read": "allow or deny", "write": "allow or deny", "lock": "allow or deny"}

MESHES = (
    RecordType("mesh.created", "the mesh", {"open": "whether any key that authenticates is a member, always"}),
    RecordType("mesh.changed", "the mesh", {"open": "whether any key that authenticates is a member, always"}),
    RecordType(
        "mesh.invited",
        "the id of the invite, never its code",
        {
            "role": "the role of who joins, always",
            "uses": "how often it may be used, always",
            "expires_at_ns": "until when, always",
        },
    ),
    RecordType("mesh.access_set", "the node id, or * for all", _ACCESS),
    RecordType("mesh.access_removed", "the node id, or * for all"),
    RecordType(
        "member.joined",
        "the node id",
        {"name": "its name in the mesh, always", "role": "its role, always", "invite": "the id of the invite it used"},
    ),
    RecordType("member.changed", "the node id", {"name": "its name in the mesh, always", "role": "its role, always"}),
    RecordType("member.left", "the node id"),
    RecordType("member.subscribed", "the node id", {"pattern": "of topics, always"}),
    RecordType("member.unsubscribed", "the node id", {"pattern": "of topics, always"}),
    RecordType("member.blocked", "the node id that is blocked; actor blocks it"),
    RecordType("member.unblocked", "the node id that is no longer blocked by actor"),
    RecordType("topic.created", "the topic"),
    RecordType("topic.removed", "the topic"),
)
