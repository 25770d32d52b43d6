"""The Pinch schema: the generated modules are current, and the field numbers are those of the protocol."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor

from posthouse.model.pinch import MESSAGE_TYPE_MESSAGE
from posthouse.relay.pinch.schema import pinch_pb2
from scripts.pinch import FOLDERS, GENERATED, NAME, SCHEMA, generate

EXAMPLE = FOLDERS[1]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_generating_again_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    generate(folder, tmp_path)
    for name in GENERATED:
        assert (tmp_path / name).read_text() == (folder / name).read_text()


def test_agent_and_relay_have_the_same_schema() -> None:
    assert (EXAMPLE / NAME).read_text() == (SCHEMA / NAME).read_text()


def test_example_agent_imports_nothing_of_posthouse() -> None:
    for path in EXAMPLE.glob("*.py"):
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)]
        modules = [alias.name for node in imports for alias in node.names]
        froms = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        modules += [node.module or "" for node in froms]
        assert modules
        assert [name for name in modules if name.startswith("posthouse")] == [], path


def test_types_have_the_numbers_of_the_wire() -> None:
    types: EnumDescriptor = pinch_pb2.DESCRIPTOR.enum_types_by_name["MessageType"]
    names = [
        "UNSPECIFIED", "HANDSHAKE", "AUTH_CHALLENGE", "AUTH_RESPONSE", "MESSAGE", "DELIVERY_CONFIRM",
        "CONNECTION_REQUEST", "CONNECTION_RESPONSE", "HEARTBEAT", "AUTH_RESULT", "CONNECTION_REVOKE",
        "BLOCK_NOTIFICATION", "UNBLOCK_NOTIFICATION", "QUEUE_STATUS", "QUEUE_FULL", "RATE_LIMITED",
    ]  # fmt: skip
    assert {value.name: value.number for value in types.values} == {
        f"MESSAGE_TYPE_{name}": number for number, name in enumerate(names)
    }


FIELDS = {
    "Envelope": "1 version 2 from_address 3 to_address 4 type 5 message_id 6 timestamp 10 encrypted 11 handshake "
    "12 heartbeat 13 auth_challenge 14 auth_response 15 auth_result 16 connection_request 17 connection_response "
    "18 connection_revoke 19 block_notification 20 unblock_notification 21 delivery_confirm 22 queue_status "
    "23 queue_full 24 rate_limited",
    "EncryptedPayload": "1 nonce 2 ciphertext 3 sender_public_key",
    "PlaintextPayload": "1 version 2 sequence 3 timestamp 4 content 5 content_type",
    "Handshake": "1 version 2 signing_key 3 encryption_key",
    "Heartbeat": "1 timestamp",
    "AuthChallenge": "1 version 2 nonce 3 issued_at_ms 4 expires_at_ms 5 relay_host",
    "AuthResponse": "1 version 2 public_key 3 signature 4 nonce",
    "AuthResult": "1 success 2 error_message 3 assigned_address",
    "ConnectionRequest": "1 from_address 2 to_address 3 message 4 sender_public_key 5 expires_at",
    "ConnectionResponse": "1 from_address 2 to_address 3 accepted 4 responder_public_key",
    "ConnectionRevoke": "1 from_address 2 to_address",
    "BlockNotification": "1 blocker_address 2 blocked_address",
    "UnblockNotification": "1 unblocker_address 2 unblocked_address",
    "DeliveryConfirm": "1 message_id 2 signature 3 timestamp 4 state 5 was_stored",
    "QueueStatus": "1 pending_count",
    "QueueFull": "1 recipient_address 2 reason",
    "RateLimited": "1 retry_after_ms 2 reason",
}


@pytest.mark.parametrize("message", FIELDS)
def test_fields_have_the_numbers_of_the_wire(message: str) -> None:
    found: Descriptor = pinch_pb2.DESCRIPTOR.message_types_by_name[message]
    assert " ".join(f"{field.number} {field.name}" for field in found.fields) == FIELDS[message]


def test_nothing_else_is_in_the_schema() -> None:
    assert set(pinch_pb2.DESCRIPTOR.message_types_by_name) == set(FIELDS)
    assert pinch_pb2.DESCRIPTOR.package == "pinch.v1"


def test_number_of_messages_that_the_model_knows_is_that_of_the_schema() -> None:
    assert pinch_pb2.MessageType.MESSAGE_TYPE_MESSAGE == MESSAGE_TYPE_MESSAGE
