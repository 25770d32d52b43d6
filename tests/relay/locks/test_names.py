"""Odd resource names over HTTP and stream: each names a lock of its own, byte for byte."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from tests.relay.locks.transports import LEASE_MS, LockRelay, granted

NAMES = [
    "a",
    "a/b/c",
    "/",
    "//",
    "/a/",
    "acquire",
    "renew",
    ".",
    "..",
    "100%",
    "%2F",
    "%",
    "%00",
    "a b",
    "+",
    "a+b",
    "?",
    "?resource=x",
    "#",
    "a&b=c",
    "é",
    "e\u0301",  # looks the same and is another name
    "☕𝄞",
    "\u202e",
    "a\nb",
    "a\x00b",
    '"',
    "\\",
    "'; DROP TABLE locks; --",
    "A",
    " a",
    "a ",
    "x" * 512,
    "𝄞" * 128,
]


async def test_every_odd_name_is_a_lock_of_its_own(relay: LockRelay) -> None:
    alice, bob = await relay.node(), await relay.node()
    tokens: dict[str, int] = {}
    for turn, name in enumerate(NAMES):
        grant = granted(await alice.ask("acquire", resource=name, lease_ms=LEASE_MS + turn))
        assert grant["resource"] == name
        tokens[name] = grant["token"]
    for turn, name in enumerate(NAMES):
        status, value = await bob.ask("inspect", resource=name) if name not in (".", "..") else (0, {})
        if status:
            assert (status, value["resource"], value["remaining_ms"]) == (200, name, LEASE_MS + turn), name
        assert (await bob.ask("acquire", resource=name, lease_ms=LEASE_MS))[1]["code"] == "held"
        renewed = granted(await alice.ask("renew", resource=name, token=tokens[name], lease_ms=LEASE_MS))
        assert renewed["resource"] == name
    listed = [lock["resource"] for lock in (await bob.ask("list"))[1]["locks"]]
    assert listed == sorted(NAMES, key=lambda name: name.encode())
    for name in NAMES:
        assert (await alice.ask("release", resource=name, token=tokens[name]))[0] == 200


@pytest.mark.parametrize("name", NAMES)
async def test_any_name_can_be_inspected_as_a_parameter(relay: LockRelay, name: str) -> None:
    alice = await relay.node(transport="http")
    reply = await relay.edge.get(f"/v1/locks?resource={quote(name, safe='')}", alice._token)  # type: ignore[attr-defined]
    assert (reply.status, reply.value["resource"]) == (200, name)
