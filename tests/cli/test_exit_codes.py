from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from posthouse.cli import exit_codes
from posthouse.model.codes.spec import Exit
from posthouse.model.errors import error
from tests.cli.command_line import CommandLine

ROOT = Path(__file__).resolve().parents[2]


def raising(failure: BaseException) -> Callable[[Sequence[str]], object]:
    def command(tokens: Sequence[str]) -> object:
        raise failure

    return command


def test_unknown_command_is_a_usage_error_with_a_suggestion(cli: CommandLine) -> None:
    outcome = cli("verson")
    assert outcome.exit == Exit.USAGE
    assert outcome.out == ""
    assert outcome.err.startswith('error: Unknown command "verson". Did you mean "version"?')
    assert "hint: Run `posthouse --help`" in outcome.err


@pytest.mark.parametrize("words", [("--json", "status"), ("--output", "csv", "status"), ("agent", "--json", "ls")])
def test_option_before_the_command_is_told_where_it_belongs(cli: CommandLine, words: tuple[str, ...]) -> None:
    outcome = cli(*words)
    assert outcome.exit == Exit.USAGE
    assert "is given where a command is expected" in outcome.err and "Write the command first" in outcome.err
    assert "Did you mean" not in outcome.err


def test_unknown_option_names_the_command_to_ask_for_help(cli: CommandLine) -> None:
    outcome = cli("keys", "new", "--colour")
    assert outcome.exit == Exit.USAGE
    assert "hint: Run `posthouse keys new --help`" in outcome.err


def test_missing_argument_is_a_usage_error_as_json_too(cli: CommandLine) -> None:
    outcome = cli("keys", "import", "--json")
    assert outcome.exit == Exit.USAGE
    assert outcome.problem["code"] == "usage"
    assert "SOURCE" in outcome.problem["detail"].upper()


def test_refusal_prints_text_and_hint_and_exits_with_the_code_of_the_registry(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failure = error("key_file_missing", path="/nowhere")
    assert exit_codes.run_to_exit_code(raising(failure), []) == failure.spec.exit == Exit.IDENTITY
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"error: there is no key file /nowhere\nhint: {failure.hint}\n"


def test_refusal_with_json_is_the_problem_object(capsys: pytest.CaptureFixture[str]) -> None:
    failure = error("key_file_missing", path="/nowhere")
    assert exit_codes.run_to_exit_code(raising(failure), ["--json"]) == Exit.IDENTITY
    assert json.loads(capsys.readouterr().err) == failure.problem()


def test_json_after_the_end_of_options_is_an_argument(capsys: pytest.CaptureFixture[str]) -> None:
    exit_codes.run_to_exit_code(raising(error("key_file_missing", path="x")), ["run", "--", "--json"])
    assert capsys.readouterr().err.startswith("error: ")


def test_unexpected_failure_becomes_internal_with_its_place_and_no_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_codes.run_to_exit_code(raising(KeyError("secret-free")), []) == Exit.BROKEN
    err = capsys.readouterr().err
    assert "error: unexpected failure: KeyError: 'secret-free'" in err
    assert "test_exit_codes.py:" in err
    assert "Traceback" not in err


def test_unexpected_failure_shows_its_traceback_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_codes.run_to_exit_code(raising(KeyError("x")), ["--debug"]) == Exit.BROKEN
    assert "Traceback" in capsys.readouterr().err


def test_unexpected_failure_with_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_codes.run_to_exit_code(raising(KeyError("x")), ["--json"]) == Exit.BROKEN
    problem = json.loads(capsys.readouterr().err)
    assert problem["code"] == "internal"
    assert problem["where"].startswith("test_exit_codes.py:")


def test_missing_library_of_an_extra_says_which_extra(capsys: pytest.CaptureFixture[str]) -> None:
    failure = ModuleNotFoundError("No module named 'google'", name="google.protobuf")
    assert exit_codes.run_to_exit_code(raising(failure), []) == Exit.USAGE
    assert f"pip install --editable '{ROOT}[pinch]'" in capsys.readouterr().err


def test_missing_library_of_no_extra_is_a_defect(capsys: pytest.CaptureFixture[str]) -> None:
    failure = ModuleNotFoundError("No module named 'posthouze'", name="posthouze")
    assert exit_codes.run_to_exit_code(raising(failure), []) == Exit.BROKEN


def test_interrupt_is_quiet_and_exits_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_codes.run_to_exit_code(raising(KeyboardInterrupt()), []) == 130
    assert capsys.readouterr() == ("", "")


def test_file_that_the_system_refuses_is_no_defect(capsys: pytest.CaptureFixture[str]) -> None:
    failure = PermissionError(errno.EACCES, "Permission denied", "/root/notes")
    assert exit_codes.run_to_exit_code(raising(failure), ["--json"]) == Exit.REFUSED
    problem = json.loads(capsys.readouterr().err)
    assert (problem["code"], problem["path"]) == ("file_denied", "/root/notes")


def test_command_in_a_directory_that_was_removed_says_so(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    outcome = cli("connect", "claude-code", "--json")
    assert (outcome.exit, outcome.problem["code"]) == (Exit.USAGE, "directory_gone")


def test_text_that_is_not_utf8_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    def send(_tokens: Sequence[str]) -> object:
        return "caf\udce9".encode()  # as Python gives an argument in Latin-1 to a program

    assert exit_codes.run_to_exit_code(send, ["--json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().err)["code"] == "text_not_utf8"


def test_exit_code_that_a_command_returns_is_the_exit_code() -> None:
    assert exit_codes.run_to_exit_code(lambda tokens: 1, []) == 1
    assert exit_codes.run_to_exit_code(lambda tokens: None, []) == Exit.OK


def test_java_that_has_ended_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """As the connection to Spark fails when the system has killed Java."""

    def ask_java(_tokens: Sequence[str]) -> object:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        return JavaGateway(gateway_parameters=GatewayParameters(port=9)).jvm.java.lang.System.nanoTime()

    assert exit_codes.run_to_exit_code(ask_java, ["--json"]) == Exit.UNREACHABLE
    problem = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert problem["code"] == "spark_stopped" and "memory" in problem["hint"]
