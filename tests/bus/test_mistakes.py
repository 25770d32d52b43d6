"""Mistakes that people make: each gets an error with a code and a hint, and nothing is stored."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import posthouse
from posthouse import AccessRule, Bus, PosthouseError, Signal, StandardPayload, Usage
from posthouse.model.access_rules import Action
from posthouse.model.envelope import Performative, SignalType
from tests.bus.house import House

Call = Callable[[Any], Awaitable[object]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"path": 5},
        {"path": b"bus"},
        {"max_hops": "5"},
        {"max_hops": 2.5},
        {"max_hops": True},
        {"default_ttl_ms": "x"},
        {"handler_timeout_s": "x"},
        {"durability": ["power"]},
        {"cycle_rule": 3},
        {"reliability": {"rateLimit": {}}},
        {"retention": 5},
        {"max_listeners": 1.5},
        {"max_attempts": 0},
        {"max_payload_bytes": "1"},
    ],
    ids=str,
)
def test_argument_of_bus_with_a_wrong_type_is_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(PosthouseError) as refused:
        Bus(**{"path": tmp_path / "bus"} | arguments)
    assert refused.value.code == "value_invalid"
    assert refused.value.fields["name"] == next(iter(arguments)), "the error names the argument"
    assert not (tmp_path / "bus").exists()


CALLS: dict[str, Call] = {
    "subscribe without a function": lambda bus: bus.subscribe("a.b", None),
    "tap without a function": lambda bus: bus.tap("a.b", "print"),
    "tap after a number": lambda bus: bus.tap("a.b", print, after=5),
    "on_signal without a function": lambda bus: bus.on_signal("a.b", 5),
    "on_dead_letter without a function": lambda bus: bus.on_dead_letter(None),
    "signal that is a text": lambda bus: bus.signal("a.b", "typing"),
    "rule that is a dict": lambda bus: bus.add_rule({"from": "a", "to": "b"}),
    "signal that is missing": lambda bus: bus.signal("a.b", None),
    "rule that is missing": lambda bus: bus.add_rule(None),
    "purge without an age": lambda bus: bus.purge(None),
    "request without an end": lambda bus: bus.request("a.b", 1, from_="c", timeout_s=None),
    "purge by a number": lambda bus: bus.purge(5),
    "purge of the future": lambda bus: bus.purge(timedelta(days=-1)),
    "find by a number": lambda bus: bus.find_messages(endpoint=5),
    "find a status that is no text": lambda bus: bus.find_messages(status=object()),
    "find with a limit that is a text": lambda bus: bus.find_messages(limit="x"),
    "journal after a text": lambda bus: bus.read_journal("x"),
    "journal with a limit that is a text": lambda bus: bus.read_journal(0, "x"),
    "inbox with a limit that is a text": lambda bus: bus.read_inbox("a.b", "x"),
    "budget that is a dict": lambda bus: bus.publish("a.b", 1, from_="c", budget={"max_hops": 2}),
}


@pytest.mark.parametrize("name", CALLS)
async def test_call_with_a_wrong_argument_is_refused(bus: Bus, name: str) -> None:
    await bus.register_endpoint("a.b")
    with pytest.raises(PosthouseError) as refused:
        await CALLS[name](bus)
    assert refused.value.code == "value_invalid"
    assert refused.value.hint
    assert await bus.read_inbox("a.b") == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: StandardPayload(content=5),  # type: ignore[arg-type]
        lambda: StandardPayload(content="x", performative="shout"),  # type: ignore[arg-type]
        lambda: StandardPayload(content="x", usage={"model": 1}),  # type: ignore[arg-type]
        lambda: Usage(model="m", input_tokens=-1, output_tokens=1, cost_usd=0),
        lambda: Usage(model="m", input_tokens=1, output_tokens="1", cost_usd=0),  # type: ignore[arg-type]
        lambda: AccessRule(from_="a", to="b", action="never", priority=1),  # type: ignore[arg-type]
    ],
)
def test_value_that_is_no_valid_payload_or_rule_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(PosthouseError) as refused:
        make()
    assert refused.value.code == "value_invalid"


def test_enums_accept_their_strings() -> None:
    assert StandardPayload(content="x", performative="request").performative is Performative.REQUEST  # type: ignore[arg-type]
    rule = AccessRule(from_="a", to="b", action="deny", priority=1)  # type: ignore[arg-type]
    assert rule.action is Action.DENY
    fields = {"state": "on", "endpoint_subject": "a", "timestamp": "2026-01-01T00:00:00.000Z"}
    assert Signal(type="typing", **fields).type is SignalType.TYPING  # type: ignore[arg-type]


def test_everything_that_a_caller_passes_in_has_a_public_name() -> None:
    names = ("GivenBudget", "Reliability", "RateLimit", "CircuitBreaker", "Backpressure", "Retention", "AccessRule")
    assert [name for name in names if not hasattr(posthouse, name)] == []


async def test_reliability_is_made_from_public_names(house: House) -> None:
    limits = posthouse.Reliability(backpressure=posthouse.Backpressure(max_mailbox_size=1))
    bus = await house.bus(reliability=limits)
    await bus.register_endpoint("a.b")
    await bus.publish("a.b", 1, from_="c")
    (refusal,) = (await bus.publish("a.b", 2, from_="c")).rejected
    assert refusal.reason is posthouse.Reason.BACKPRESSURE


async def test_directory_below_a_file_is_refused_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PosthouseError) as refused:
        await Bus(tmp_path / "file" / "bus").open()
    assert (refused.value.code, "Not a directory" in str(refused.value)) == ("store_unusable", True)


COMMAND = [sys.executable, "-m", "posthouse.cli.main", "bus", "pub", "a.b", "1", "--dir"]


def publish_as(directory: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"POSTHOUSE_HOME": str(directory)}
    done = subprocess.run([*prefix, *COMMAND, str(directory)], capture_output=True, text=True, timeout=60, env=environ)
    assert "bug in posthouse" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("most", [12, 16, 32])
def test_few_descriptors_suffice_or_are_named_as_the_reason(tmp_path: Path, most: int) -> None:
    done = publish_as(tmp_path / "bus", "bash", "-c", f'ulimit -n {most}; exec "$@"', "bash")
    if "stored in 0 mailboxes" not in done.stdout:  # no endpoint matches: the bus was opened and worked
        assert "posthouse doctor" in done.stderr, done.stderr
    assert most < 32 or "stored in 0 mailboxes" in done.stdout


def test_read_only_directory_is_refused_with_its_reason() -> None:
    done = publish_as(Path("/proc/posthouse"))  # a file system that no user can write to, root neither
    assert "/proc/posthouse cannot be used" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "a.b", "--run", ""),
        ("serve", "a.b", "--run", "'"),
        ("dead", "purge", "--older-than", "nan"),
        ("dead", "purge", "--older-than", "1e300"),
    ],
)
def test_command_with_an_impossible_option_is_a_usage_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "posthouse.cli.main", "bus", *words, "--dir", str(tmp_path / "bus")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "bug in posthouse" not in done.stderr
