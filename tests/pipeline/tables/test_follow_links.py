"""Following replies in memory: chains, starts, circles, and what leads into a circle."""

from __future__ import annotations

from posthouse.pipeline.tables.follow_links import Link, Message, Place, follow_links


def message(id_: str) -> Message:
    return "relay", "main", id_


def places(links: dict[str, tuple[str | None, str | None]]) -> dict[str, Place]:
    found = follow_links({message(id_): Link(*link) for id_, link in links.items()})
    return {id_: place for (_source, _mesh, id_), place in found.items()}


def test_a_reply_belongs_to_the_conversation_at_the_end_of_its_chain() -> None:
    found = places({"c": ("b", None), "b": ("a", None), "a": (None, "a"), "x": (None, "named")})
    assert found == {"a": Place("a", 0), "b": Place("a", 1), "c": Place("a", 2), "x": Place("named", 0)}


def test_a_circle_is_one_conversation_with_its_smallest_id_and_so_is_what_leads_into_it() -> None:
    found = places({"t2": ("t1", None), "t1": ("q", None), "q": ("p", None), "p": ("r", None), "r": ("q", None)})
    assert set(found.values()) == {Place("p", None)}
    assert places({"self": ("self", None)}) == {"self": Place("self", None)}


def test_a_chain_of_thousands_is_followed() -> None:
    links: dict[str, tuple[str | None, str | None]] = {f"m{n}": (f"m{n - 1}", None) for n in range(1, 20_000)}
    found = places(links | {"m0": (None, "m0")})
    assert found["m19999"] == Place("m0", 19_999)


def test_messages_of_other_meshes_with_the_same_id_are_apart() -> None:
    links = {
        ("relay", "a", "1"): Link(None, "1"),
        ("relay", "b", "1"): Link("2", None),
        ("relay", "b", "2"): Link(None, "z"),
    }
    assert follow_links(links)["relay", "b", "1"] == Place("z", 1)
