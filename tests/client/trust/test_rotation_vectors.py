"""Rotations as docs/protocol.md describes them, and what a message of a former key proves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from posthouse.client.key_chains import is_proven, sign_rotation
from posthouse.client.trust.signing import open_content, seal_content, sign_again, sign_event
from posthouse.keys import NodeKey, verify
from posthouse.model.errors import PosthouseError
from posthouse.model.event import MESSAGE, Event, check_structure
from posthouse.model.rotation import (
    SEALED_BY,
    KeyChain,
    KeyChange,
    KeyEnd,
    proof_bytes,
    read_recovery_key,
    read_rotation,
)

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "vectors"
VECTORS = json.loads((FOLDER / "rotation.json").read_text())
KEYS = {
    each["name"]: NodeKey(bytes.fromhex(each["seed"]))
    for each in json.loads((FOLDER / "identity.json").read_text())["keys"]
}


def event_of(value: Any) -> Event:
    event = msgspec.convert(value, Event)
    verify(event.pubkey, check_structure(event), event.sig)
    return event


def test_rotation_of_the_protocol() -> None:
    vector = VECTORS["rotation"]
    node, successor = KEYS[vector["node"]], KEYS[vector["successor"]]
    assert proof_bytes(node.node, successor.node).decode() == vector["proof_bytes"]
    event = event_of(vector["event"])
    assert sign_rotation(node, node.node, successor, event.created_at_ns) == event
    rotation = read_rotation(event)
    assert (rotation.node, rotation.successor, rotation.proof) == (node.node, successor.node, vector["proof"])


def test_recovery_of_the_protocol() -> None:
    vector = VECTORS["recovery"]
    naming, event = event_of(vector["naming_event"]), event_of(vector["event"])
    assert read_recovery_key(naming) == event.pubkey == KEYS[vector["recovery"]].node
    assert read_rotation(event).node == KEYS[vector["node"]].node
    change = KeyChange(
        naming.pubkey, KeyEnd.RECOVERED, KEYS[vector["successor"]].node, event.pubkey, 0, None, event, naming
    )
    assert is_proven(KeyChain("", None, (change,)), change.node, str(change.successor))
    without = msgspec.structs.replace(change, naming_event=None)
    assert not is_proven(KeyChain("", None, (without,)), change.node, str(change.successor))


def test_message_that_was_signed_again_of_the_protocol() -> None:
    vector = VECTORS["resigned"]
    event = event_of(vector["event"])
    assert event.pubkey == NodeKey(bytes.fromhex(vector["successor_seed"])).node
    assert open_content(KEYS[vector["reader"]], event) == vector["plaintext"]


def test_own_message_that_was_signed_again_can_be_opened_by_its_owner() -> None:
    old, reader = NodeKey.generate(), NodeKey.generate()
    content, tags = seal_content(old, [reader.node], "mine")
    new = NodeKey(NodeKey.generate().reveal_seed(), [old])
    assert open_content(new, sign_again(new, sign_event(old, MESSAGE, content, [*tags, ("c", "1")], 1))) == "mine"


def test_node_that_copies_a_sealed_message_cannot_pass_it_on_as_its_own() -> None:
    victim, thief, reader = NodeKey.generate(), NodeKey.generate(), NodeKey.generate()
    content, tags = seal_content(victim, [reader.node], "secret")
    for proof in (thief.sign(b"anything").hex(), "00" * 64):
        stolen = sign_event(thief, MESSAGE, content, [*tags, ("c", "1"), (SEALED_BY, victim.node, proof)], 1)
        with pytest.raises(PosthouseError):
            open_content(reader, stolen)


def test_chain_with_a_link_that_the_owner_did_not_sign_proves_nothing() -> None:
    first, second, third = NodeKey.generate(), NodeKey.generate(), NodeKey.generate()
    signed = sign_rotation(first, first.node, second, 1)
    forged = sign_rotation(third, second.node, NodeKey.generate(), 1)
    links = (
        KeyChange(first.node, KeyEnd.ROTATED, second.node, first.node, 0, None, signed, None),
        KeyChange(second.node, KeyEnd.ROTATED, read_rotation(forged).successor, second.node, 0, None, forged, None),
    )
    chain = KeyChain(first.node, None, links)
    assert is_proven(chain, first.node, second.node)
    assert not is_proven(chain, first.node, read_rotation(forged).successor)
