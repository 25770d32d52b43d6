"""One agent has one name, whatever store mentions it."""

from __future__ import annotations

import pytest

from posthouse.pipeline.party_names import PartyNames

LAPTOP, SERVER, NEW = "a1" * 32, "b2" * 32, "c3" * 32
NAMES = PartyNames(
    {f"ed25519:{LAPTOP}": "laptop", f"ed25519:{SERVER}": "server"},
    [f"ed25519:{LAPTOP}/claude", f"ed25519:{LAPTOP}/codex", f"ed25519:{SERVER}/codex"],
)


@pytest.mark.parametrize(
    ("party", "name"),
    [
        (f"ed25519:{LAPTOP}", "laptop"),
        (f"ed25519:{LAPTOP}/claude", "claude@laptop"),
        (f"mesh.main.member.{LAPTOP}.claude", "claude@laptop"),
        (f"mesh.main.out.dm.{LAPTOP}.claude", "claude@laptop"),
        ("agents.claude", "claude@laptop"),
        (f"mesh.main.member.{SERVER}", "server"),
        ("agents.codex", "codex"),  # two hosts have one
        ("agents.server.inbox", "server"),  # a member of this name
        ("agents.nobody", "nobody"),
        (f"ed25519:{NEW}", "c3c3c3c3…"),
        (f"ed25519:{NEW}/claude", "claude@c3c3c3c3…"),
        ("jobs.nightly.report", "jobs.nightly.report"),
        ("ed25519:short", "ed25519:short"),
    ],
)
def test_every_form_of_a_party_leads_to_its_name(party: str, name: str) -> None:
    assert NAMES(party) == name
