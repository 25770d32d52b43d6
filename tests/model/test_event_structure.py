from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.errors import Refused
from posthouse.model.event import Event, Tag, check_publishable, check_structure, check_times
from posthouse.model.limits import SECOND_NS
from tests.model.strategies import NODES, TAGS, TEXTS, make_event

NOW = 1_700_000_000_000_000_000


@given(
    st.builds(
        make_event,
        pubkey=NODES,
        created_at_ns=st.integers(0, 2**63 - 1),
        kind=st.integers(1, 29_999),
        tags=TAGS,
        content=TEXTS,
    )
)
def test_a_well_formed_event_gives_its_canonical_bytes(event: Event) -> None:
    assert check_structure(event) == event.canonical()


def refused(event: Event) -> str:
    with pytest.raises(Refused) as caught:
        check_structure(event)
    return caught.value.code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"id": "0" * 64}, "event_id_mismatch"),
        ({"id": "0" * 63}, "event_id_form"),
        ({"id": "A" * 64}, "event_id_form"),
        ({"content": "altered"}, "event_id_mismatch"),
        ({"kind": 2}, "event_id_mismatch"),
        ({"created_at_ns": 5}, "event_id_mismatch"),
        ({"pubkey": "ed25519:" + "b" * 64}, "event_id_mismatch"),
        ({"pubkey": "ed25519:" + "A" * 64}, "event_pubkey_form"),
        ({"created_at_ns": -1}, "event_created_at_range"),
        ({"created_at_ns": 2**63}, "event_created_at_range"),
        ({"kind": 0}, "kind_invalid"),
        ({"kind": 40_000}, "kind_invalid"),
        ({"kind": -1}, "kind_invalid"),
        ({"sig": ""}, "event_sig_form"),
        ({"sig": "0" * 127}, "event_sig_form"),
        ({"sig": "A" * 128}, "event_sig_form"),
        ({"sig": "-----BEGIN SSH SIGNATURE-----\nAAAA\n"}, "event_sig_form"),
        ({"sig": "-----BEGIN SSH SIGNATURE-----\n" + "A" * 5000 + "\n-----END SSH SIGNATURE-----"}, "event_sig_form"),
    ],
)
def test_an_altered_event_is_refused(change: dict[str, Any], code: str) -> None:
    assert refused(msgspec.structs.replace(make_event(), **change)) == code


def test_the_form_of_an_ssh_signature_is_accepted() -> None:
    assert check_structure(make_event(sig="-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n"))


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        (((),), "tag_empty"),
        ((("",),), "tag_empty"),
        ((("", "a"),), "tag_empty"),
        ((("x", "v" * 8193),), "tag_value_too_long"),
        ((("x", "é" * 4097),), "tag_value_too_long"),
        ((("x" * 8193,),), "tag_value_too_long"),
        ((("mesh", "a"), ("mesh", "a")), "tag_repeated"),
        ((("mesh",),), "tag_malformed"),
        ((("mesh", "a", "b"),), "tag_malformed"),
        ((("mesh", ""),), "mesh_name_invalid"),
        ((("mesh", "a.b"),), "mesh_name_invalid"),
        ((("expiration", "1"), ("expiration", "2")), "tag_repeated"),
        ((("expiration",),), "tag_malformed"),
        ((("expiration", "-1"),), "tag_malformed"),
        ((("expiration", "1.0"),), "tag_malformed"),
        ((("expiration", "01"),), "tag_malformed"),
        ((("expiration", "1" * 20),), "tag_malformed"),
        ((("fence", "r", "1"),), "tag_malformed"),
        (tuple(("x", str(n)) for n in range(201)), "tags_too_many"),
    ],
)
def test_a_malformed_tag_is_refused_with_its_code(tags: tuple[Tag, ...], code: str) -> None:
    assert refused(make_event(tags=tags)) == code


def test_limits_themselves_are_allowed() -> None:
    assert check_structure(make_event(tags=(("x", "v" * 8192), ("y", "é" * 4096))))
    assert check_structure(make_event(tags=tuple(("x", str(n)) for n in range(200))))


def test_an_event_has_at_most_128_kib_of_canonical_bytes() -> None:
    empty = len(make_event().canonical())
    room = 128 * 1024 - empty
    assert check_structure(make_event(content="a" * room))
    assert refused(make_event(content="a" * (room + 1))) == "event_too_large"
    assert refused(make_event(content="\x01" * (room // 6 + 1))) == "event_too_large"


def test_an_addressable_event_needs_a_d_tag_whose_value_may_be_empty() -> None:
    assert refused(make_event(kind=30_000)) == "address_needs_d"
    assert refused(make_event(kind=30_000, tags=(("d",),))) == "address_needs_d"
    assert check_structure(make_event(kind=30_000, tags=(("d", ""),)))
    assert check_structure(make_event(kind=10_000))


@pytest.mark.parametrize(
    "fence",
    [
        ("fence", "r"),
        ("fence", "r", "0"),
        ("fence", "r", "01"),
        ("fence", "r", "x"),
        ("fence", "r", "1", "loose"),
        ("fence", "r", "1", "strict", "x"),
        ("fence", "r", str(2**63)),
    ],
)
def test_a_malformed_fence_is_refused(fence: Tag) -> None:
    assert refused(make_event(kind=10_000, tags=(fence,))) == "tag_malformed"
    assert refused(make_event(kind=10_000, tags=(("fence", "", "1"),))) == "resource_invalid"
    assert check_structure(make_event(kind=10_000, tags=(("fence", "r", "1", "strict"),)))


def test_an_authentication_event_is_never_published() -> None:
    check_publishable(make_event())
    with pytest.raises(Refused) as caught:
        check_publishable(make_event(kind=22_242))
    assert caught.value.code == "kind_not_publishable"


def test_created_at_may_be_15_minutes_ahead_and_no_more() -> None:
    check_times(make_event(created_at_ns=NOW + 900 * SECOND_NS), NOW)
    check_times(make_event(created_at_ns=0), NOW)
    with pytest.raises(Refused) as caught:
        check_times(make_event(created_at_ns=NOW + 900 * SECOND_NS + 1), NOW)
    assert caught.value.code == "event_created_at_ahead"


def test_an_expiration_in_the_past_is_refused() -> None:
    event = make_event(tags=(("expiration", str(NOW // SECOND_NS)),))
    check_times(event, NOW - 1)
    assert not event.is_expired(NOW - 1)
    assert event.is_expired(NOW)
    with pytest.raises(Refused) as caught:
        check_times(event, NOW)
    assert caught.value.code == "event_expired"
