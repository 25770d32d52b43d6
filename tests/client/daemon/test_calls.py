from __future__ import annotations

import json

import pytest

from posthouse.client.daemon import calls
from posthouse.client.daemon.calls import Call, refusal
from posthouse.model.errors import PosthouseError, Refused, Transient


def test_send_without_a_client_message_id_gets_a_minted_one() -> None:
    first, second = calls.send("bob", "x", {}), calls.send("bob", "x", {})
    assert first.body["client_message_id"] != second.body["client_message_id"]
    assert first.encode() == first.encode()


def test_given_id_is_sent_and_absent_options_are_not() -> None:
    call = calls.send("bob", "x", {"client_message_id": "mine", "meta": None})
    assert call.body == {"to": "bob", "message": "x", "client_message_id": "mine"}


def test_query_is_percent_encoded_without_absent_parameters() -> None:
    call = calls.inbox({"sender": "a b&c", "unread": True}, 2.5)
    assert call.target == "/v1/inbox?from=a%20b%26c&unread=true&wait_s=2.5"
    assert calls.item("../x?y").target == "/v1/inbox/..%2Fx%3Fy"


@pytest.mark.parametrize("path", [calls.requeue("r", None, None), calls.drop("r"), calls.topic_change("create", "t")])
def test_call_that_a_repeat_would_change_is_not_repeatable(path: Call[object]) -> None:
    assert not path.is_repeatable


def test_refusal_of_the_daemon_keeps_code_hint_and_fields() -> None:
    answer = {"error": "outbox_row_state", "hint": "look", "id": "r", "status": "done", "allowed": "dead rows"}
    failure = refusal(409, json.dumps(answer).encode(), "sock")
    assert isinstance(failure, Refused)
    assert (failure.code, failure.hint, failure.fields["status"]) == ("outbox_row_state", "look", "done")
    assert "is done" in str(failure)


def test_code_of_a_newer_daemon_is_kept_and_its_status_decides_about_retries() -> None:
    failure = refusal(503, b'{"error":"moon_too_full","hint":"wait","detail":"the moon {x}"}', "sock")
    assert isinstance(failure, Transient)
    assert (failure.code, str(failure), failure.hint) == ("moon_too_full", "the moon {x}", "wait")


@pytest.mark.parametrize("data", [b"", b"<html>", b"[]", b'{"hint":"x"}', b'{"error":7}'])
def test_refusal_without_an_error_code_is_an_invalid_answer(data: bytes) -> None:
    assert refusal(500, data, "sock").code == "daemon_answer_invalid"


def test_answer_of_another_shape_is_an_invalid_answer() -> None:
    with pytest.raises(PosthouseError) as caught:
        calls.seen(["a"]).answer(200, b'{"number":1}', "sock")
    assert caught.value.code == "daemon_answer_invalid"
