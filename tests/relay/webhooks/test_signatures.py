"""Signatures of webhooks: the published vectors, what the public library says about them, and the rules of back-off."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nacl.signing import VerifyKey
from standardwebhooks import Webhook

from posthouse.model.errors import PosthouseError
from posthouse.model.webhook import Outcome, backoff_s, outcome_of, parse_secret, sign_hmac, signed_bytes
from posthouse.relay.webhooks.dispatcher import sign_ed25519

VECTOR = json.loads((Path(__file__).parents[3] / "docs" / "vectors" / "webhooks.json").read_text())
SIGNED = signed_bytes(VECTOR["id"], VECTOR["timestamp"], VECTOR["body"].encode())


def test_the_vectors_are_made_again_and_the_library_signs_alike() -> None:
    secret = parse_secret(VECTOR["secret"])
    made = sign_hmac(secret, VECTOR["id"], VECTOR["timestamp"], VECTOR["body"].encode())
    at = datetime.fromtimestamp(VECTOR["timestamp"], UTC)
    assert made == VECTOR["v1"] == Webhook(VECTOR["secret"]).sign(VECTOR["id"], at, VECTOR["body"])
    assert sign_ed25519(bytes.fromhex(VECTOR["seed"]), SIGNED) == VECTOR["v1a"]


def test_the_vector_of_ed25519_verifies_with_nacl() -> None:
    key = VerifyKey(base64.b64decode(VECTOR["public_key"].removeprefix("whpk_")))
    key.verify(SIGNED, base64.b64decode(VECTOR["v1a"].removeprefix("v1a,")))


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_????", "whsec_" + base64.b64encode(b"short").decode()])
def test_a_weak_or_malformed_secret_is_refused(text: str) -> None:
    with pytest.raises(PosthouseError) as failed:
        parse_secret(text)
    assert failed.value.code == "value_invalid"


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.SENT),
        (204, Outcome.SENT),
        (301, Outcome.REFUSED),
        (400, Outcome.REFUSED),
        (404, Outcome.REFUSED),
        (408, Outcome.RETRY),
        (410, Outcome.GONE),
        (425, Outcome.RETRY),
        (429, Outcome.RETRY),
        (500, Outcome.RETRY),
        (503, Outcome.RETRY),
    ],
)
def test_a_status_means(status: int, outcome: Outcome) -> None:
    assert outcome_of(status) is outcome


def test_back_off_doubles_to_an_hour_with_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posthouse.model.webhook.FIRST_BACKOFF_S", 1.0)
    assert [backoff_s(attempts, 1.0) for attempts in (1, 2, 3, 20, 1000)] == [1.0, 2.0, 4.0, 3600.0, 3600.0]
    assert backoff_s(3, 0.0) == 2.0
