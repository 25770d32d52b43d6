"""Conversations for evaluations: grouped, redacted, without sealed text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from posthouse.model.errors import PosthouseError
from posthouse.pipeline.export_conversations import (
    ExportedMessage,
    RedactionRules,
    group_messages,
    message_of_envelope,
    message_of_event,
    parse_rules,
    redact,
    redact_name,
)

RULES = """
drop = ["meta", "model"]
[[replace]]
pattern = "[a-z.]+@[a-z.]+"
with = "[email]"
[[replace]]
pattern = "sk-[A-Za-z0-9]+"
"""


def message(
    number: int, reply_to: int | None = None, conversation: str | None = None, text: str | None = "hello"
) -> ExportedMessage:
    above = None if reply_to is None else str(reply_to)
    return ExportedMessage("relay", "main", str(number), number, "ann@host.org", "#news", above, conversation, text)


def test_replies_and_named_conversations_are_grouped_oldest_first() -> None:
    given = [message(3, 2), message(2, 1), message(1), message(5, 4, "plan"), message(4), message(6, 5), message(9, 8)]
    grouped = {name: [each.id for each in group] for name, group in group_messages(iter(given))}
    assert grouped == {"1": ["1", "2", "3"], "plan": ["5", "6"], "4": ["4"], "8": ["9"]}


@pytest.mark.parametrize(
    ("given", "name"), [("plan", "plan"), (5, "5"), (["a"], '["a"]'), ({"a": 1}, '{"a":1}'), (None, "1"), ("", "1")]
)
def test_a_conversation_that_a_sender_names_by_another_value_than_a_text_is_a_conversation(
    given: object, name: str
) -> None:
    meta = json.dumps({"conversation_id": given, "usage": {"model": given}})
    event = json.dumps({"id": "1", "pubkey": "k", "tags": [["p", "r"], ["meta", meta]], "content": "hello"})
    payload = {"content": "hello", "conversationId": given, "usage": {"model": given}}
    body = json.dumps({"endpoint": "agents.x", "envelope": {"from": "agents.y", "payload": payload}})
    row = {"mesh": "main", "at_ns": 1, "ref": "1", "event": event, "body": body}
    made = [message_of_event(row), message_of_envelope(row), message(2), message(3, conversation="plan")]
    grouped = group_messages(iter(made))
    assert [found for found, group in grouped if group[0].id == "1"] == [name, name]
    assert {each.model for each in made} <= {"plan", "", None}


def test_messages_that_reply_to_each_other_in_a_circle_end_somewhere() -> None:
    grouped = group_messages(iter([message(1, 2), message(2, 1)]))
    assert sorted(each.id for _, group in grouped for each in group) == ["1", "2"]


def test_rules_drop_fields_and_replace_what_they_match_but_keep_ids() -> None:
    shown = redact(message(1, text="mail ann@host.org the key sk-AB12, thanks"), parse_rules(RULES))
    assert shown["text"] == "mail [email] the key [redacted], thanks"
    assert shown["sender"] == "[email]"
    assert (shown["id"], shown["is_sealed"]) == ("1", False)
    assert "meta" not in shown and "model" not in shown


def test_rules_reach_names_of_conversations_and_every_text_in_meta_whatever_its_field_is_called() -> None:
    rules = parse_rules("[[replace]]\npattern = 'sk-[A-Z0-9]+'")
    meta = {"id": "sk-A1", "reply_to": ["sk-B2"], "sk-C3": {"at": "sk-D4"}}
    named = replace(message(1, conversation="about sk-E5"), meta=meta)
    assert "sk-" not in json.dumps([redact(named, rules), redact_name("about sk-E5", [named], rules)])
    started = replace(message(2), id="sk-F6")  # an id, which others reply to
    assert (redact_name("sk-F6", [started], rules), redact(started, rules)["id"]) == ("sk-F6", "sk-F6")


def test_sealed_text_is_left_out_and_said() -> None:
    shown = redact(message(1, text=None), RedactionRules())
    assert shown["text"] is None and shown["is_sealed"]


@pytest.mark.parametrize(
    "text",
    [
        *("drop = 1", 'drop = ["body"]', "[[replace]]", '[[replace]]\npattern = "("', "words = []"),
        *("[[replace]]\npattern = 'a'\nwith = '\\2'", "[[replace]]\npattern = 'a'\nwith = '\\g<b>'"),
    ],
)
def test_damaged_rules_are_refused_before_anything_is_written(text: str) -> None:
    with pytest.raises(PosthouseError) as refused:
        parse_rules(text)
    assert refused.value.code == "config_unreadable"
