"""What terms promise: different values differ, and values that grow lie side by side."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from posthouse.relay.store.event_rows import author_kind_term, author_term, kind_term, mesh_term, tag_term

_values = st.text(max_size=40)


@given(st.sets(st.integers(0, 10**18), min_size=2))
@settings(max_examples=50)
def test_numbers_stand_in_the_order_of_their_value(numbers: set[int]) -> None:
    ordered = sorted(numbers, key=lambda number: tag_term("n", str(number)))
    assert ordered == sorted(numbers)


@given(_values, _values)
@settings(max_examples=200)
def test_different_values_of_a_tag_have_different_terms(one: str, other: str) -> None:
    assert (tag_term("t", one) == tag_term("t", other)) == (one == other)


@given(_values)
@settings(max_examples=50)
def test_equal_values_of_different_conditions_have_different_terms(value: str) -> None:
    terms = [
        tag_term("t", value),
        tag_term("k", value),
        author_term(value),
        author_kind_term(value, 1),
        author_kind_term(value, 11),
        kind_term(1),
        mesh_term(value),
    ]
    assert len(set(terms)) == len(terms)
