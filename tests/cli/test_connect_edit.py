"""Edits of text, against what the parsers say: the entry is set and nothing else has changed."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posthouse.cli.connect_file import ConfigFile
from posthouse.cli.connect_json import MAX_DEPTH, parse, set_entry
from posthouse.cli.connect_toml import set_table
from posthouse.model.errors import PosthouseError

WANTED = {"command": "/bin/posthouse", "args": ["mcp", "--dir", 'a "b" \\ ü']}
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
ENTRIES = st.dictionaries(st.text(max_size=6), st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=3)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """A file of settings, with the group or without it, and perhaps with the entry."""
    value: dict[str, Any] = draw(st.dictionaries(st.text(max_size=6), VALUES, max_size=3))
    value.pop("servers", None)
    if draw(st.booleans()):
        value["servers"] = draw(ENTRIES)
        if draw(st.booleans()):
            value["servers"]["posthouse"] = {"command": "old", "keep": draw(VALUES)}
    return value


@given(settings(), st.sampled_from([None, 1, 2, 4, "\t"]), st.booleans(), st.booleans())
def test_json_is_what_it_was_with_the_entry_set(
    value: dict[str, Any], indent: Any, is_crlf: bool, is_ascii: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
    text = text.replace("\n", "\r\n") if is_crlf else text
    meant = copy.deepcopy(value)
    meant.setdefault("servers", {}).setdefault("posthouse", {}).update(WANTED)
    changed = set_entry(text, "servers", "posthouse", WANTED, is_lenient=False)
    assert json.loads(changed) == meant
    assert list(json.loads(changed)) == list(meant)
    assert set_entry(changed, "servers", "posthouse", WANTED, is_lenient=False) == changed


@given(VALUES, st.sampled_from([None, 2, "\t"]))
def test_the_parser_reads_what_the_standard_one_reads(value: Any, indent: Any) -> None:
    text = json.dumps(value, indent=indent)
    for is_lenient in (False, True):
        node = parse(text, is_lenient=is_lenient)
        assert node.value == value and (node.start, node.end) == (0, len(text))


@given(st.text(alphabet='{}[]",:/*\\ \n1at-.e', max_size=12))
def test_text_that_the_standard_parser_refuses_is_refused(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError):
            parse(text, is_lenient=False)
        return
    try:
        assert parse(text, is_lenient=False).value == expected
    except ValueError as refused:
        assert "occurs twice" in str(refused)


def test_depth_is_bounded() -> None:
    with pytest.raises(ValueError, match="deeply"):
        parse("[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2), is_lenient=True)


TOML_FILES = (
    "",
    "# only a comment",
    'a = 1\n[b]\nc = """\n[mcp_servers.posthouse]\ncommand = "in a text"\n"""\n',
    '[mcp_servers.posthouse]\ncommand = "x"\n',
    '[mcp_servers."posthouse"] # quoted\nargs = []\n[mcp_servers.posthouse.env]\nA = "1"\n',
    '[[list]]\nx = 1\n[[list]]\nx = 2\n[mcp_servers.a]\ncommand = "x"\n[mcp_servers.posthouse]\n[z]\n',
    "a = 1\r\n[mcp_servers.posthouse]\r\nargs = [\r\n  1,\r\n]\r\nenabled = true\r\n",
)


@pytest.mark.parametrize("text", TOML_FILES, ids=range(len(TOML_FILES)))
def test_toml_is_what_it_was_with_the_table_set_or_refused(text: str) -> None:
    meant = tomllib.loads(text)
    meant.setdefault("mcp_servers", {}).setdefault("posthouse", {}).update(WANTED)
    changed = set_table(text, "mcp_servers", "posthouse", WANTED)
    assert tomllib.loads(changed) == meant
    assert set_table(changed, "mcp_servers", "posthouse", WANTED) == changed
    assert ("\r\n" in text) == ("\r\n" in changed) and changed.count("\r\n") in (0, changed.count("\n"))
    assert [line for line in text.splitlines() if line.startswith("#") and line not in changed.splitlines()] == []


def test_a_file_that_changed_meanwhile_is_left_alone(tmp_path: Path) -> None:
    file = ConfigFile(tmp_path, ("mcp.json",))
    file.path.write_text("{}")
    before = file.read()
    file.path.write_text('{"new": 1}')
    with pytest.raises(PosthouseError) as refused:
        file.replace(before, b"{}", "now")
    assert refused.value.code == "agent_config_changed"
    assert file.path.read_text() == '{"new": 1}'
    absent = ConfigFile(tmp_path, ("sub", "mcp.json"))
    assert absent.read() is None
    absent.path.parent.mkdir()
    absent.path.write_text("another program was faster")
    with pytest.raises(PosthouseError):
        absent.replace(None, b"{}", "now")
    assert [path.name for path in absent.path.parent.iterdir()] == ["mcp.json"]
