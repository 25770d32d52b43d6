"""Which epoch a row is of, and what filters leave of a range."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, LessThan, LessThanOrEqual, Not

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.connector.feeds import bounds, condition_of
from posthouse.pipeline.connector.source_access import parse_source, parse_sources
from posthouse.pipeline.connector.stores import MIGRATIONS, known_version
from posthouse.pipeline.epochs import Ancestor, History, Segment, lineage_of
from posthouse.storage.sql_files import Component

A, B, C = Ancestor("a", None, 0, 1), Ancestor("b", "a", 10, 2), Ancestor("c", "b", 25, 3)


def test_rows_belong_to_the_epoch_that_wrote_them() -> None:
    history = History("relay", (A, B, C), 0, 40)
    assert list(history.segments(0, 40)) == [Segment("a", 0, 10), Segment("b", 10, 25), Segment("c", 25, 40)]
    assert list(history.segments(12, 30)) == [Segment("b", 12, 25), Segment("c", 25, 30)]


def test_rows_below_the_horizon_are_not_planned() -> None:
    assert list(History("relay", (A, B), 7, 12).segments(0, 99)) == [Segment("a", 7, 10), Segment("b", 10, 12)]


@given(st.lists(st.integers(0, 50), max_size=4), st.integers(0, 60), st.integers(0, 60), st.integers(0, 60))
def test_segments_cover_every_row_of_a_range_once(forks: list[int], head: int, after: int, to: int) -> None:
    names = [Ancestor(str(n), None, fork, n) for n, fork in enumerate([0, *sorted(forks)])]
    history = History("relay", tuple(names), 0, max(head, *[each.fork_seq for each in names]))
    found = [seq for part in history.segments(after, to) for seq in range(part.after + 1, part.to + 1)]
    assert found == list(range(after + 1, min(to, history.head) + 1))


def test_epochs_that_a_restore_left_are_not_in_the_lineage() -> None:
    left = Ancestor("x", "a", 5, 2)
    assert lineage_of([A, left, Ancestor("b", "a", 3, 3)]) == (A, Ancestor("b", "a", 3, 3))


def test_filters_become_conditions_where_sql_says_the_same() -> None:
    taken: list[Filter] = [EqualTo(("type",), "refused"), In(("mesh",), ("a", "b")), IsNotNull(("mesh",))]
    assert [each.text for f in taken if (each := condition_of(f))] == [
        "type = ?",
        "mesh IN (?, ?)",
        "mesh IS NOT NULL",
    ]
    left: list[Filter] = [EqualTo(("body",), "x"), Not(EqualTo(("type",), "x")), EqualTo(("seq",), "7")]
    assert [condition_of(each) for each in left] == [None, None, None]


def test_filters_on_seq_bound_what_is_planned() -> None:
    given_: list[Filter] = [GreaterThan(("seq",), 10), LessThanOrEqual(("seq",), 20), LessThan(("seq",), 19)]
    assert bounds([each for f in given_ if (each := condition_of(f))]) == (10, 18)
    assert bounds([each for f in [In(("seq",), (7, 3))] if (each := condition_of(f))]) == (2, 7)


def test_a_directory_stands_for_the_stores_in_it(tmp_path: Path) -> None:
    for name in ("outbox.db", "inbox.db"):
        (tmp_path / name).touch()
    assert [Path(each.url).name for each in parse_sources([str(tmp_path)])] == ["outbox.db", "inbox.db"]
    with pytest.raises(PosthouseError, match="2 stores"):
        parse_source(str(tmp_path))


@pytest.mark.parametrize("text", ["/nowhere/relay.db", "http://", "https://host:99999"])
def test_what_is_no_source_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        parse_source(text)
    assert refused.value.code == "source_invalid"


def test_the_ways_to_write_a_relays_address_mean_one_source() -> None:
    found = parse_sources(["ws://Relay.example:80/v1/stream", "http://relay.example/"])
    assert [each.url for each in found] == ["http://relay.example:80"]


def test_known_versions_are_those_of_the_migrations() -> None:
    for component, folder in MIGRATIONS.items():
        declared = Component(component, "posthouse." + folder.replace("/", "."))
        assert known_version(component) == len(declared.migrations)
