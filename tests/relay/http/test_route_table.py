"""The relay's table of routes: each route can be found and is described."""

from __future__ import annotations

import pytest

from posthouse.http.router import Router
from posthouse.model.errors import PosthouseError
from posthouse.relay.openapi import ROUTES


def test_fixed_segments_win_over_parameters() -> None:
    router = Router(ROUTES)
    assert router.find("GET", ("v1", "events", "count")).route.path == "/v1/events/count"
    found = router.find("GET", ("v1", "events", "0" * 64))
    assert (found.route.path, found.params) == ("/v1/events/{id}", {"id": "0" * 64})


def test_only_d_may_be_empty() -> None:
    router = Router(ROUTES)
    found = router.find("GET", ("v1", "events", "address", "30000", "node", "", "history"))
    assert found.params == {"kind": "30000", "pubkey": "node", "d": ""}
    for segments in (("v1", "events", ""), ("v1", "meshes", "", "members"), ("v1", "events", "address", "", "n", "d")):
        with pytest.raises(PosthouseError, match="nothing at"):
            router.find("GET", segments)


def test_every_route_has_a_name_of_its_own_and_says_what_it_answers() -> None:
    names = [route.name for route in ROUTES]
    assert len(set(names)) == len(names)
    assert [route.name for route in ROUTES if not route.responses or not route.summary] == []
