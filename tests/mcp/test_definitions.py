"""What every agent pays for at each turn: the definitions, exactly as they go over the wire."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from posthouse.client.daemon import InboxItem
from posthouse.mcp import pipe
from posthouse.mcp.protocol import INSTRUCTIONS
from posthouse.mcp.refusals import AGENT_HINTS
from posthouse.mcp.server import TOOLS, default_definitions
from posthouse.mcp.tools.reading import of_item, show
from posthouse.model.errors import ERROR_CODES
from tests.mcp.agents import BOUND_S, command, environment

#: brings its vocabularies along: counting needs no network
openai: Any = importlib.import_module("rs_bpe.bpe").openai
MOST_TOOLS = 10
#: of the line that answers tools/list, without output schemas and with them
MOST_TOKENS = 700
MOST_TOKENS_WITH_SCHEMAS = 1_200
MOST_TOKENS_OF_A_MESSAGE = 60
WITH_SCHEMA = {"send", "status", "lock", "reserve"}
TOKENIZERS = {"o200k_base": openai.o200k_base, "cl100k_base": openai.cl100k_base}
VERSIONS = ("2025-06-18", "2025-11-25", "2026-07-28")


def exchange(folder: Path, *requests: dict[str, Any]) -> list[str]:
    """Send lines to a server over stdio; return its answers. Its input stays open until it has given them all."""
    lines = "".join(json.dumps({"jsonrpc": "2.0"} | request) + "\n" for request in requests)
    with subprocess.Popen(
        [sys.executable, *command(folder / "no-daemon")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(folder),
        text=True,
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        watchdog = threading.Timer(BOUND_S, server.kill)
        watchdog.start()
        try:
            server.stdin.write(lines)
            server.stdin.flush()
            answers = [server.stdout.readline().rstrip("\n") for request in requests if "id" in request]
            server.stdin.close()
            assert server.wait(BOUND_S) == 0
        finally:
            watchdog.cancel()
    return answers


def listed(folder: Path, version: str) -> str:
    """Return the line that answers tools/list in a version of the protocol."""
    about = {"name": "test", "version": "1"}
    if version >= "2026":
        prefix = "io.modelcontextprotocol/"
        values = {"protocolVersion": version, "clientInfo": about, "clientCapabilities": {}}
        meta = {prefix + name: value for name, value in values.items()}
        return exchange(folder, {"id": 1, "method": "tools/list", "params": {"_meta": meta}})[-1]
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": about}
    return exchange(
        folder,
        {"id": 0, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "tools/list"},
    )[-1]


@pytest.fixture(params=VERSIONS)
def line(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return listed(tmp_path, request.param)


@pytest.fixture
def tools(line: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(line)["result"]["tools"]
    return found


def without_schemas(line: str) -> str:
    """Return the line without output schemas."""
    value = json.loads(line)
    for tool in value["result"]["tools"]:
        tool.pop("outputSchema", None)
    return json.dumps(value, separators=(",", ":"))


def test_there_are_at_most_ten_tools_in_a_fixed_order(tools: list[dict[str, Any]]) -> None:
    names = [tool["name"] for tool in tools]
    assert names == list(TOOLS)
    assert len(names) <= MOST_TOOLS


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_definitions_take_few_tokens_on_the_wire(line: str, tokenizer: str) -> None:
    counted = TOKENIZERS[tokenizer]()
    assert counted.decode(counted.encode(line)) == line
    assert len(counted.encode(line)) <= MOST_TOKENS_WITH_SCHEMAS
    assert len(counted.encode(without_schemas(line))) <= MOST_TOKENS


def test_control_the_count_would_find_definitions_that_are_too_long(line: str) -> None:
    value = json.loads(without_schemas(line))
    for tool in value["result"]["tools"]:
        tool["description"] += " and much more about it than anybody wants to read at every single turn"
    assert len(openai.o200k_base().encode(json.dumps(value, separators=(",", ":")))) > MOST_TOKENS


def test_every_tool_has_an_input_schema_and_hints_and_few_an_output_schema(tools: list[dict[str, Any]]) -> None:
    for tool in tools:
        for name in ("inputSchema", "outputSchema"):
            schema = tool.get(name, {"type": "object"})
            assert schema["type"] == "object"
            jsonschema.Draft202012Validator.check_schema(schema)
        assert tool["description"]
    assert {tool["name"] for tool in tools if "outputSchema" in tool} == WITH_SCHEMA
    read_only = {tool["name"] for tool in tools if tool["annotations"].get("readOnlyHint")}
    assert read_only == {"inbox", "wait", "who", "history", "status"}
    assert all(tool["annotations"]["destructiveHint"] is False for tool in tools if tool["name"] not in read_only)


def test_the_pipe_knows_the_tools_without_a_daemon() -> None:
    path = Path(pipe.__file__).with_name("definitions.json")
    assert path.read_bytes() == default_definitions(), "run `python -m posthouse.mcp.server` and keep what it prints"


def test_no_tool_lets_a_caller_say_who_it_is(tools: list[dict[str, Any]]) -> None:
    offered = {name for tool in tools for name in tool["inputSchema"]["properties"]}
    assert not offered & {"from", "sender", "as", "author", "node", "member", "budget", "ttl", "hops"}


def test_bound_of_a_wait_is_the_one_in_the_schema(tmp_path: Path) -> None:
    wait = next(tool for tool in json.loads(listed(tmp_path, VERSIONS[0]))["result"]["tools"] if tool["name"] == "wait")
    assert wait["inputSchema"]["properties"]["seconds"]["maximum"] == 50


def test_instructions_are_short_and_mark_what_is_untrusted() -> None:
    assert "untrusted" in INSTRUCTIONS
    assert len(openai.o200k_base().encode(INSTRUCTIONS)) < 80


def test_every_tool_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "mcp.md").read_text()
    assert [name for name in TOOLS if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", ["build-server", None], ids=["with a name", "without a name"])
def test_a_message_in_a_list_takes_at_most_60_tokens_beside_its_text(name: str | None) -> None:
    item = InboxItem(
        id="01J", client_message_id="c", message_id="9f86d081884c7d65" * 4, mesh="main", topic="releases.api",
        sender="ed25519:" + "3b1f9d7a50c2e846" * 4, sender_name=name, from_agent="code-reviewer", body="hello",
        meta=None,
        received_at="2026-01-01T00:00:00Z", reply_to_id="2c26b46b68ffc68f" * 4, seen_at=None, age_s=7_000,
    )  # fmt: skip
    shown = msgspec.json.encode(show([of_item(item)], None)[0]).decode()
    for tokenizer in TOKENIZERS.values():
        assert len(tokenizer().encode(shown)) - len(tokenizer().encode("hello")) <= MOST_TOKENS_OF_A_MESSAGE


WORD = re.compile(r"`([a-z_]+)`")


def test_hints_speak_of_tools_and_arguments_that_exist() -> None:
    arguments = {name for tool in TOOLS.values() for name in tool.definition(50)["inputSchema"]["properties"]}
    wrong = {
        (code, word)
        for code, hint in AGENT_HINTS.items()
        for word in WORD.findall(hint)
        if word not in arguments | set(TOOLS)
    }
    assert wrong == set()
    assert {code for code in AGENT_HINTS if code not in ERROR_CODES} == set()
