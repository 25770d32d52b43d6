from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.node import Role
from posthouse.relay.accept.mesh_registry import Meshes, Right, rights_of
from posthouse.relay.wire.mesh_rows import ALL_NODES, AccessRow, MemberRow, MeshRow, MeshRows, Verdict

NODES = ["a", "b", "c"]
ROLES = st.sampled_from(Role)
VERDICTS = st.sampled_from(Verdict)
ACCESS = st.builds(AccessRow, st.just("m"), st.sampled_from([*NODES, ALL_NODES]), VERDICTS, VERDICTS, VERDICTS)

BY_ROLE = {
    Role.READER: {"read"},
    Role.MEMBER: {"read", "write", "lock"},
    Role.ADMIN: {"read", "write", "lock", "administer"},
}


def build(is_open: bool, members: dict[str, Role], access: list[AccessRow]) -> Meshes:
    return Meshes(
        MeshRows(
            [MeshRow("m", is_open, "x", 0)],
            [MemberRow("m", node, f"name-{node}", role) for node, role in members.items()],
            list({row.node: row for row in access}.values()),
            [],
            [],
            [],
        )
    )


@given(st.booleans(), st.dictionaries(st.sampled_from(NODES), ROLES), st.lists(ACCESS), st.sampled_from(NODES))
def test_access_narrows_the_role_and_a_row_of_the_node_counts_instead_of_everybodys(
    is_open: bool, members: dict[str, Role], access: list[AccessRow], node: str
) -> None:
    rows = {row.node: row for row in access}
    role = members.get(node, Role.MEMBER if is_open else None)
    expected = set() if role is None else set(BY_ROLE[role])
    counting = rows.get(node, rows.get(ALL_NODES))
    if counting is not None:
        expected -= {right for right in ("read", "write", "lock") if getattr(counting, right) is Verdict.DENY}
    assert {right.value for right in build(is_open, members, access).rights(node, "m")} == expected


@given(ROLES, ACCESS)
def test_access_never_widens_a_role_and_never_takes_administering(role: Role, access: AccessRow) -> None:
    assert rights_of(role, access) <= rights_of(role, None)
    assert (Right.ADMINISTER in rights_of(role, access)) == (role is Role.ADMIN)


def test_mesh_that_is_not_there_gives_no_rights() -> None:
    meshes = build(True, {}, [])
    assert meshes.rights("a", "elsewhere") == frozenset()
    refusal = meshes.authorization_error("a", "elsewhere", Right.READ)
    assert refusal is not None
    assert refusal.code == "mesh_unknown"


def test_reader_of_every_mesh_needs_no_list_of_them() -> None:
    assert build(True, {}, []).readable("a") is None
    assert build(False, {"a": Role.READER}, []).readable("b") == frozenset()
