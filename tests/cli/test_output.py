from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Group as RichGroup

from posthouse.cli.output import Output, indented, one_line, show, table, visible, write_json
from tests.cli.command_line import CommandLine


def test_json_output_is_one_line_with_paths_as_text() -> None:
    stream = io.StringIO()
    write_json(stream, {"file": Path("/a/b"), "text": "zwei\nZeilen"})
    assert stream.getvalue().count("\n") == 1
    assert json.loads(stream.getvalue()) == {"file": "/a/b", "text": "zwei\nZeilen"}


def test_value_without_a_json_form_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        write_json(io.StringIO(), {"x": io.StringIO()})


def test_control_characters_of_others_are_shown_not_sent() -> None:
    assert visible("a\x1b[2Jb\x07") == "a\\x1b[2Jb\\x07"
    assert visible("line\none\ttab") == "line\none\ttab"


HOSTILE = "real\n2026-01-01  boss  forged\r\x1b[2J\x9b31m\x7f\u202e\u2028\U000e0001\tend"


def test_text_of_another_node_stays_on_its_line() -> None:
    assert one_line("a\nb\tc\r\x1b") == "a\\nb\\tc\\r\\x1b"
    assert len(one_line(HOSTILE).splitlines()) == 1
    assert one_line(HOSTILE).isprintable()


def test_lines_of_another_node_are_moved_right() -> None:
    assert indented("first\nhint: second", 6) == "first\n      hint: second"


def test_json_has_no_raw_control_characters_and_keeps_its_value() -> None:
    stream = io.StringIO()
    write_json(stream, {"text": HOSTILE})
    assert stream.getvalue().rstrip("\n").isprintable()
    assert json.loads(stream.getvalue()) == {"text": HOSTILE}


def test_row_of_a_table_stays_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    show(stream, table(("sender", "text"), [("bob", HOSTILE), (HOSTILE, "x")]))
    assert len(stream.getvalue().splitlines()) == 3


def test_anything_that_rich_renders_is_escaped() -> None:
    stream = io.StringIO()
    show(stream, RichGroup("to \x1b]0;title\x07", table(("name",), [("x",)])))
    assert "to \\x1b]0;title" in stream.getvalue()
    assert all(c.isprintable() or c == "\n" for c in stream.getvalue())


@settings(max_examples=100)
@given(st.text())
def test_shown_text_never_holds_an_escape(text: str) -> None:
    stream = io.StringIO()
    show(stream, text)
    assert all(c.isprintable() or c in "\n\t" for c in stream.getvalue())


def test_table_cells_are_neither_markup_nor_control_codes() -> None:
    stream = io.StringIO()
    show(stream, table(("name",), [("[bold]x[/bold]\x1b[31m",)]))
    assert "[bold]x[/bold]\\x1b[31m" in stream.getvalue()


def test_long_values_stay_on_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    show(stream, table(("id", "key"), [("x" * 90, "y" * 90)]))
    assert any("x" * 90 in line and "y" * 90 in line for line in stream.getvalue().splitlines())


def test_notes_go_to_people_only(capsys: pytest.CaptureFixture[str]) -> None:
    Output().note("working")
    Output(json=True).note("working")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "working\n")


def test_csv_has_the_columns_of_the_table_once_and_quotes_what_needs_it(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(form="csv")
    output.result({"items": []}, table(("id", "text"), [("1", 'says "hi", twice\nand leaves\x1b[2J')]))
    output.result({"items": []}, table(("id", "text"), [("2", "plain")]))
    output.note("a note")
    captured = capsys.readouterr()
    rows = list(csv.reader(io.StringIO(captured.out)))
    assert rows == [["id", "text"], ["1", 'says "hi", twice\nand leaves\\x1b[2J'], ["2", "plain"]]
    assert captured.err == "a note\n"


def test_csv_of_a_result_without_a_table_is_its_value_in_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    Output(form="csv").result({"id": "a", "seq": 7, "tags": ["x"], "file": Path("/b"), "none": None}, "a  7")
    assert capsys.readouterr().out == 'id,seq,tags,file,none\na,7,"[""x""]",/b,\n'


def test_csv_finds_the_table_below_a_heading_and_parts_two_tables(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(form="csv")
    output.result(None, RichGroup("a heading", table(("a",), [("1",)])))
    output.result(None, table(("b",), [("2",)]))
    assert capsys.readouterr().out == "a\n1\n\nb\n2\n"


def test_output_json_is_the_long_form_of_json_for_results_and_errors(cli: CommandLine) -> None:
    assert cli("version", "--output", "json").value == cli("version", "--json").value
    assert cli("keys", "show", "--output=json").problem["code"] == "key_file_missing"
    assert cli("version", "--output", "csv").out.splitlines()[0] == "posthouse,python"
    assert cli("version", "--output", "yaml").exit == 2
    refused = cli("version", "--json", "--output", "csv")
    assert (refused.exit, "cannot be combined" in refused.err) == (2, True)
