"""The published vectors: each is derived again from its inputs, and docs/protocol.md shows the same values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
from blake3 import blake3
from nacl.bindings import crypto_sign_ed25519_pk_to_curve25519

from posthouse.client.messages.sender import Composer, MessageOptions
from posthouse.client.trust.signing import Signer
from posthouse.keys import NodeKey, public_key, read_public_line, sign_native, sign_sshsig, verify, write_public_line
from posthouse.keys.sealing import open_age, open_box, seal_box_with_nonce
from posthouse.keys.ssh import read_private_key, write_private_key
from posthouse.model.clock import FakeClock
from posthouse.model.errors import Refused
from posthouse.model.event import canonical_event_bytes, event_id
from posthouse.model.message import fingerprint, meta_field
from posthouse.model.ulid import UlidGenerator
from tests.keys import edwards, vectors
from tests.keys.refusal import refused

PROTOCOL = (vectors.DOCS / "protocol.md").read_text("utf-8")
KEYS = vectors.keys()
EVENTS = vectors.read("events")
IDENTITY = vectors.read("identity")
SEALING = vectors.read("sealing")
FINGERPRINTS = vectors.read("fingerprint")["vectors"]
Vector = dict[str, Any]


def by_name(vector: Vector) -> str:
    return str(vector.get("name") or vector.get("reason"))


@pytest.mark.parametrize("vector", IDENTITY["keys"], ids=by_name)
def test_keys_derive_from_their_seeds(vector: Vector) -> None:
    key = NodeKey(bytes.fromhex(vector["seed"]))
    assert key.node == vector["node"]
    assert write_public_line(key.node) == vector["ssh_public_line"]
    assert read_public_line(vector["ssh_public_line"]) == key.node
    assert write_private_key(key) == vector["ssh_private_key"]
    assert read_private_key(vector["ssh_private_key"]).node == key.node
    assert key.exchange_secret().hex() == vector["x25519_secret"]
    assert crypto_sign_ed25519_pk_to_curve25519(key.public).hex() == vector["x25519_public"]


@pytest.mark.parametrize("vector", IDENTITY["keys"], ids=by_name)
def test_the_key_conversion_is_the_one_the_protocol_describes(vector: Vector) -> None:
    scalar = bytearray(hashlib.sha512(bytes.fromhex(vector["seed"])).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    assert scalar.hex() == vector["x25519_secret"]
    _, y = edwards.decode(public_key(vector["node"]))
    u = (1 + y) * pow(1 - y, -1, edwards.P) % edwards.P
    assert u.to_bytes(32, "little").hex() == vector["x25519_public"]


@pytest.mark.parametrize("vector", IDENTITY["refused"], ids=by_name)
def test_unsound_node_ids_are_refused(vector: Vector) -> None:
    with refused("node_id_invalid"):
        public_key(vector["node"])


@pytest.mark.parametrize("vector", EVENTS["events"], ids=by_name)
def test_events_have_their_canonical_bytes_id_and_signatures(vector: Vector) -> None:
    key = KEYS[vector["key"]]
    canonical = canonical_event_bytes(
        vector["pubkey"], vector["created_at_ns"], vector["kind"], vector["tags"], vector["content"]
    )
    assert vector["pubkey"] == key.node
    assert canonical.hex() == vector["canonical_hex"]
    assert event_id(canonical) == blake3(canonical).hexdigest() == vector["id"]
    assert sign_native(key, canonical) == vector["sig"]
    assert sign_sshsig(key, canonical, "sha256") == vector["sshsig_sha256"]
    assert sign_sshsig(key, canonical, "sha512") == vector["sshsig_sha512"]
    for form in ("sig", "sshsig_sha256", "sshsig_sha512"):
        verify(key.node, canonical, vector[form])


@pytest.mark.parametrize("vector", EVENTS["events"], ids=by_name)
def test_canonical_bytes_follow_the_rules_of_the_protocol(vector: Vector) -> None:
    tags = ",".join("[" + ",".join(map(spell, tag)) + "]" for tag in vector["tags"])
    numbers = f"{vector['created_at_ns']},{vector['kind']}"
    text = f'["posthouse-event-v1","{vector["pubkey"]}",{numbers},[{tags}],{spell(vector["content"])}]'
    assert text.encode().hex() == vector["canonical_hex"]


def spell(text: str) -> str:
    """Write a string by the table in the protocol, character by character."""
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
    spelled = (short.get(c) or (f"\\u{ord(c):04x}" if c < " " else c) for c in text)
    return '"' + "".join(spelled) + '"'


@pytest.mark.parametrize("vector", EVENTS["refused_signatures_of_plain"], ids=by_name)
def test_signatures_to_refuse_are_refused(vector: Vector) -> None:
    plain = EVENTS["events"][0]
    assert plain["name"] == "plain"
    with pytest.raises(Refused) as caught:
        verify(plain["pubkey"], bytes.fromhex(plain["canonical_hex"]), vector["sig"])
    assert caught.value.code in ("signature_malformed", "signature_invalid")


@pytest.mark.parametrize("vector", SEALING["box"])
def test_boxes_are_sealed_and_opened_to_the_byte(vector: Vector) -> None:
    sender, reader = KEYS[vector["sender"]], KEYS[vector["reader"]]
    plaintext = vector["plaintext"].encode()
    sealed = seal_box_with_nonce(sender, reader.node, plaintext, bytes.fromhex(vector["nonce"]))
    assert sealed == vector["content"]
    assert open_box(reader, sender.node, vector["content"]) == plaintext


@pytest.mark.parametrize("vector", SEALING["age"])
def test_age_content_opens_for_its_readers(vector: Vector) -> None:
    assert [write_public_line(KEYS[name].node) for name in vector["readers"]] == vector["recipients"]
    for name in vector["readers"]:
        assert open_age(KEYS[name], vector["content"]) == vector["plaintext"].encode()
    with refused("sealed_unopened"):
        open_age(KEYS["alice"], vector["content"])


@pytest.mark.parametrize("vector", SEALING["repeatable"], ids=lambda vector: vector["client_message_id"])
def test_repeatable_boxes_come_out_as_published(vector: Vector) -> None:
    sender, reader = KEYS[vector["sender"]], KEYS[vector["reader"]]
    composer = Composer(Signer(sender, FakeClock()), UlidGenerator(FakeClock()))
    options = {"client_message_id": vector["client_message_id"], "from_agent": vector["from"], "to_agent": vector["to"]}
    request = composer.request(reader.node, vector["plaintext"], vector["mesh"], cast(MessageOptions, options))
    assert composer.seal_and_sign(request).content == vector["content"]
    assert vector["content"] in PROTOCOL


@pytest.mark.parametrize("vector", FINGERPRINTS, ids=lambda vector: vector["fingerprint"][:8])
def test_fingerprints_come_out_as_published(vector: Vector) -> None:
    body = vector["body"].encode()
    assert meta_field(vector["meta"]) == vector["meta_jcs"]
    made = fingerprint(
        vector["destination_kind"],
        vector["destination_ref"],
        vector["reply_to_id"],
        vector["priority"],
        vector["meta_jcs"],
        body,
    )
    fields = [vector[name] for name in ("destination_kind", "destination_ref", "reply_to_id", "priority", "meta_jcs")]
    joined = "\0".join(["1", *fields, hashlib.sha256(body).hexdigest()])
    assert made.hex() == hashlib.sha256(joined.encode()).hexdigest() == vector["fingerprint"]


def published() -> Iterator[str]:
    """Yield every value that the protocol has to show."""
    for key in IDENTITY["keys"]:
        yield from (key[name] for name in key if name not in ("name", "ssh_private_key"))
    yield from (vector["node"] for vector in IDENTITY["refused"])
    for event in EVENTS["events"]:
        yield from (str(event["created_at_ns"]), event["id"], event["sig"])
    yield from (EVENTS["events"][0]["sshsig_sha256"], EVENTS["events"][0]["sshsig_sha512"])
    yield from (vector["reason"] for vector in EVENTS["refused_signatures_of_plain"])
    yield from (vector["content"] for form in SEALING.values() for vector in form)
    yield SEALING["box"][0]["nonce"]
    yield from (vector["fingerprint"] for vector in FINGERPRINTS)


def test_the_protocol_shows_the_vectors() -> None:
    missing = [value for value in published() if value not in PROTOCOL]
    assert missing == []


@pytest.mark.parametrize("vector", EVENTS["events"], ids=by_name)
def test_the_protocol_shows_the_canonical_bytes_as_text_or_in_hexadecimal(vector: Vector) -> None:
    text = bytes.fromhex(vector["canonical_hex"]).decode()
    assert text in PROTOCOL or vector["canonical_hex"] in PROTOCOL


def test_the_protocol_links_every_vector_file() -> None:
    for path in (vectors.DOCS / "vectors").iterdir():
        assert f"](vectors/{path.name})" in PROTOCOL
