from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.model.budget import Budget
from posthouse.model.envelope import (
    Attachment,
    ChannelType,
    DeadLetter,
    Envelope,
    Performative,
    Signal,
    SignalType,
    StandardPayload,
    Usage,
    decode_dead_letter,
    decode_envelope,
    encode_envelope,
    json_payload,
    read_payload,
)
from posthouse.model.errors import Refused
from tests.model.strategies import SUBJECTS, patterns
from tests.model.test_strict_json import JSON_VALUES

#: the file as another program of the same format writes it
FILE: dict[str, Any] = {
    "id": "01HF7YAT00ABCDEFGHJKMNPQRS",
    "subject": "agents.b.inbox",
    "from": "agents.a",
    "replyTo": "agents.a.inbox",
    "budget": {
        "hopCount": 1,
        "maxHops": 5,
        "ancestorChain": ["agents.b.inbox"],
        "ttl": 1_700_003_600_000,
        "callBudgetRemaining": 9,
    },
    "createdAt": "2023-11-14T22:13:20.000Z",
    "payload": {"content": "hello", "n": [1, 2.5, None, True]},
}


def test_a_file_is_read_in_camel_case_and_written_back_the_same() -> None:
    envelope = decode_envelope(json.dumps(FILE).encode())
    assert envelope.from_ == "agents.a"
    assert envelope.reply_to == "agents.a.inbox"
    assert envelope.budget.call_budget_remaining == 9
    assert json.loads(encode_envelope(envelope)) == FILE


@given(
    payload=JSON_VALUES,
    subject=SUBJECTS,
    sender=SUBJECTS,
    published_to=st.none() | patterns(),
    reply_to=st.none() | SUBJECTS,
    chain=st.lists(SUBJECTS, max_size=3).map(tuple),
)
def test_every_envelope_survives_its_file(
    payload: Any, subject: str, sender: str, published_to: str | None, reply_to: str | None, chain: tuple[str, ...]
) -> None:
    envelope = Envelope(
        id=FILE["id"],
        subject=subject,
        from_=sender,
        budget=Budget(hop_count=0, max_hops=5, ancestor_chain=chain, ttl=0, call_budget_remaining=0),
        created_at=FILE["createdAt"],
        payload=json_payload(payload),
        reply_to=reply_to,
        published_to=published_to,
    )
    data = encode_envelope(envelope)
    assert decode_envelope(data) == envelope
    assert ("publishedTo" in json.loads(data)) == (published_to is not None)
    letter = DeadLetter(envelope=envelope, reason="call budget exhausted", failed_at=FILE["createdAt"])
    assert decode_dead_letter(msgspec.json.encode(letter)) == letter


def test_a_dead_letter_has_the_names_of_the_format() -> None:
    letter = DeadLetter(envelope=decode_envelope(json.dumps(FILE).encode()), reason="why", failed_at=FILE["createdAt"])
    assert json.loads(msgspec.json.encode(letter)) == {"envelope": FILE, "reason": "why", "failedAt": FILE["createdAt"]}


@pytest.mark.parametrize(
    "change",
    [
        {"id": "x"},
        {"id": None},
        {"subject": "a.*"},
        {"subject": ""},
        {"from": "a b"},
        {"from": None},
        {"replyTo": "a.>"},
        {"createdAt": "yesterday"},
        {"publishedTo": "a.>.b"},
        {"budget": {}},
        {"budget": FILE["budget"] | {"maxHops": 0}},
        {"budget": FILE["budget"] | {"hopCount": 1.5}},
        {"budget": FILE["budget"] | {"hopCount": True}},
    ],
)
def test_a_file_with_a_bad_field_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        decode_envelope(json.dumps(FILE | change).encode())


@pytest.mark.parametrize("name", ["id", "subject", "from", "budget", "createdAt", "payload"])
def test_a_file_without_a_field_is_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        decode_envelope(json.dumps({key: value for key, value in FILE.items() if key != name}).encode())
    assert caught.value.code == "value_invalid"


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\x00\x01", b'{"id":"\xff"}', b"[" * 50_000])
def test_a_corrupt_file_is_refused(data: bytes) -> None:
    with pytest.raises(Refused) as caught:
        decode_envelope(data)
    assert caught.value.code == "value_invalid"


def test_a_standard_payload_travels_in_camel_case() -> None:
    payload = StandardPayload(
        content="hi",
        sender_name="Ada",
        channel_type=ChannelType.THREAD,
        attachments=(Attachment(path="/tmp/x", filename="x", mime_type="text/plain", size=3),),
        performative=Performative.CFP,
        usage=Usage(model="m", input_tokens=1, output_tokens=2, cost_usd=0.5),
        platform_data={"any": [1]},
    )
    plain = json_payload(payload)
    assert plain["senderName"] == "Ada"
    assert plain["attachments"][0]["mimeType"] == "text/plain"
    assert plain["usage"] == {"model": "m", "inputTokens": 1, "outputTokens": 2, "costUsd": 0.5}
    assert read_payload(json.loads(json.dumps(plain))) == payload


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"content": 1},
        {"content": "x", "channelType": "room"},
        {"content": "x", "performative": "shout"},
        {"content": "x", "attachments": [{"path": "p", "filename": "f", "mimeType": "m", "size": -1}]},
        "text",
    ],
)
def test_what_is_no_standard_payload_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match="payload"):
        read_payload(value)


def test_signal_is_validated_when_it_is_made() -> None:
    good: dict[str, Any] = {
        "type": SignalType.PROGRESS,
        "state": "half",
        "endpoint_subject": "a.b",
        "timestamp": FILE["createdAt"],
    }
    assert Signal(**good, data={"n": 1}).data == {"n": 1}
    for change in ({"type": "smoke"}, {"state": ""}, {"endpoint_subject": "a.*"}, {"timestamp": "now"}):
        with pytest.raises(Refused):
            Signal(**(good | change))
