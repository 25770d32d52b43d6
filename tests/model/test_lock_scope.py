from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import PosthouseError, Refused
from posthouse.model.lock_scope import (
    Asked,
    conflicts,
    covers,
    keeps_order,
    overlaps,
    range_below,
    trees_above,
    validate_resource,
    validate_resources,
    validate_session,
)

NAMES = st.text(alphabet="ab/0.é\U0001f512", min_size=1, max_size=8)
CLAIMS = st.builds(
    Asked, NAMES, st.sampled_from(["ada", "bob"]), st.sampled_from(["", "s"]), st.booleans(), st.booleans()
)


def covered(claim: Asked, universe: list[str]) -> set[str]:
    """Return what a claim covers, from its parts: a tree covers a name that begins with all of its parts."""
    parts = claim.resource.split("/")
    return {
        name
        for name in universe
        if name == claim.resource or (claim.is_tree and name.split("/")[: len(parts)] == parts)
    }


@given(CLAIMS, CLAIMS, st.lists(NAMES))
def test_claims_overlap_if_and_only_if_they_cover_a_common_name(one: Asked, other: Asked, names: list[str]) -> None:
    universe = [*names, one.resource, other.resource]
    common = covered(one, universe) & covered(other, universe)
    assert overlaps(one, other) == overlaps(other, one) == bool(common)
    for name in universe:
        assert covers(one, name) == (name in covered(one, universe))


@given(CLAIMS, CLAIMS)
def test_claims_conflict_if_they_overlap_have_two_holders_and_are_not_both_shared(one: Asked, other: Asked) -> None:
    is_same = (one.owner, one.session) == (other.owner, other.session)
    expected = overlaps(one, other) and not is_same and not (one.is_shared and other.is_shared)
    assert conflicts(one, other) == conflicts(other, one) == expected


@given(CLAIMS, CLAIMS)
def test_claims_keep_their_order_if_they_conflict_or_overlap_within_one_session(one: Asked, other: Asked) -> None:
    is_same = (one.owner, one.session) == (other.owner, other.session)
    expected = conflicts(one, other) or (is_same and overlaps(one, other))
    assert keeps_order(one, other) == keeps_order(other, one) == expected


@given(NAMES, NAMES)
def test_names_below_a_tree_are_a_range_and_know_the_trees_above_them(tree: str, name: str) -> None:
    is_below = name != tree and covers(Asked(tree, "ada", is_tree=True), name)
    first, end = range_below(tree)
    assert (first <= name < end) == is_below
    assert (first.encode() <= name.encode() < end.encode()) == is_below
    assert (tree in trees_above(name)) == is_below


def test_a_name_of_any_depth_has_a_bounded_number_of_trees_above_it() -> None:
    deep = "/".join("x" * 100)
    assert len(trees_above(deep)) == 32
    validate_resources([deep], is_tree=False)
    validate_resources(["/".join("x" * 32)], is_tree=True)
    with pytest.raises(PosthouseError, match="32 levels"):
        validate_resources(["/".join("x" * 33)], is_tree=True)


@pytest.mark.parametrize(
    ("names", "is_tree", "reason"),
    [
        (["a", "b", "a"], False, "'a' twice"),
        (["a/b/c", "a/b"], True, "'a/b/c' twice"),
        ([f"{number}" for number in range(65)], False, "65 names"),
        (["a", ""], False, "0 bytes"),
    ],
)
def test_names_of_one_request_are_few_and_disjoint(names: list[str], is_tree: bool, reason: str) -> None:
    with pytest.raises(PosthouseError, match=reason):
        validate_resources(names, is_tree=is_tree)
    validate_resources(["a", "a/b"], is_tree=False)
    validate_resources([f"{number}" for number in range(64)], is_tree=True)


@pytest.mark.parametrize("session", ["x" * 256, "a\n", None, 7])
def test_a_session_is_printable_and_bounded(session: str) -> None:
    with pytest.raises(PosthouseError) as caught:
        validate_session(session)
    assert caught.value.code == "session_invalid"
    assert validate_session("") == "" and validate_session("x" * 255)


@pytest.mark.parametrize("resource", ["", "x" * 513, "é" * 257, "\ud800"])
def test_a_resource_has_1_to_512_bytes(resource: str) -> None:
    with pytest.raises(Refused) as caught:
        validate_resource(resource)
    assert caught.value.code == "resource_invalid"
    for odd in ("x" * 512, "a/b c?#%", "\n", "☕", "../.."):
        assert validate_resource(odd) == odd
