"""Which rows a restore has lost."""

from __future__ import annotations

from posthouse.pipeline.epochs import ALL_LIVE, ALL_LOST, Epoch, live_through, root_epochs


def epoch(name: str, parent: str | None = None, fork_seq: int = 0, started: int = 0) -> Epoch:
    return Epoch(name, parent, fork_seq, "relay", "/relay.db", started)


def test_a_store_that_was_never_restored_has_lost_nothing() -> None:
    assert live_through([epoch("a"), epoch("other")]) == {"a": ALL_LIVE, "other": ALL_LIVE}


def test_rows_of_the_parent_above_the_fork_are_lost() -> None:
    assert live_through([epoch("a"), epoch("b", "a", 10, 1)]) == {"a": 10, "b": ALL_LIVE}


def test_an_older_fork_cuts_every_ancestor_above_it() -> None:
    found = live_through([epoch("a"), epoch("b", "a", 10, 1), epoch("c", "b", 7, 2)])
    assert found == {"a": 7, "b": 7, "c": ALL_LIVE}


def test_a_branch_that_a_later_restore_left_is_lost_as_a_whole() -> None:
    found = live_through([epoch("a"), epoch("b", "a", 10, 1), epoch("c", "a", 5, 2)])
    assert found == {"a": 5, "b": ALL_LOST, "c": ALL_LIVE}


def test_the_first_epoch_names_a_store_over_all_restores() -> None:
    found = root_epochs([epoch("a"), epoch("b", "a", 10, 1), epoch("c", "b", 20, 2), epoch("x")])
    assert found == {"a": "a", "b": "a", "c": "a", "x": "x"}
