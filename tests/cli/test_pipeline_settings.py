"""Settings of the pipeline that commands read by themselves: from the file, the environment and an option."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.cli.pipeline_options import PipelineOptions
from posthouse.files import private_dir
from posthouse.keys import NodeKey
from posthouse.model.errors import PosthouseError

NODE, OTHER = (NodeKey(bytes([number]) * 32).node for number in (1, 2))
WAYS = ("file", "environment", "option")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = private_dir(tmp_path / "home")
    monkeypatch.setenv("POSTHOUSE_HOME", str(folder))
    return folder


def given(home: Path, monkeypatch: pytest.MonkeyPatch, way: str, name: str, value: str) -> str | None:
    """Set a setting in one way, and another value in each weaker way; return the value of the option."""
    strength = WAYS.index(way)
    (home / "config.toml").write_text(f"[pipeline]\n{name} = '{value if way == 'file' else 'weaker'}'\n")
    if strength > 0:
        monkeypatch.setenv(f"POSTHOUSE_PIPELINE_{name.upper()}", value if way == "environment" else "weaker")
    return value if way == "option" else None


@pytest.mark.parametrize("way", WAYS)
def test_publishers_are_trusted_as_each_way_says(home: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    option = given(home, monkeypatch, way, "publishers", f"{NODE}, {OTHER}")
    assert PipelineOptions().publishers(option) == [NODE, OTHER]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("wrong", ["laptop", NODE.upper(), NODE.removeprefix("ed25519:"), NODE[:-1]])
def test_misspelled_publisher_is_a_wrong_argument_and_no_finding(wrong: str) -> None:
    with pytest.raises(PosthouseError, match=r"pipeline\.publishers") as refused:
        PipelineOptions().publishers(f"{OTHER}, {wrong}")
    assert refused.value.code == "usage"


@pytest.mark.parametrize("way", WAYS)
def test_prices_are_those_of_the_file_that_each_way_names(
    home: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (home / "mine.toml").write_text("[large]\ninput = 2.0\noutput = 8.0\n")
    option = given(home, monkeypatch, way, "prices", str(home / "mine.toml"))
    assert PipelineOptions().prices(option).cost_usd("large", 500_000, 0, 250_000) == 3.0
    (home / "mine.toml").unlink()
    with pytest.raises(PosthouseError, match=r"mine\.toml cannot be read: No such file") as missing:
        PipelineOptions().prices(option)
    assert (missing.value.code, missing.value.hint) == ("usage", "Check the name of the file.")


@pytest.mark.usefixtures("home")
def test_prices_need_no_file_unless_one_is_named() -> None:
    assert PipelineOptions().prices().cost_usd("large", 1, 0, 1) is None
