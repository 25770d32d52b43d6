from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from posthouse import extras

PIP = "/home/ann/work/.venv"
PIPX = "/home/ann/.local/share/pipx/venvs/posthouse"
UV = "/home/ann/.local/share/uv/tools/posthouse"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of an installation that comes first on the path, from an index as long as it names no source."""
    info = tmp_path / "site" / "posthouse-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: posthouse\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(info.parent))
    return info


def record(info: Path, source: Path, **fields: object) -> None:
    (info / "direct_url.json").write_text(json.dumps({"url": source.as_uri(), **fields}))


@pytest.mark.parametrize(
    ("environment", "install"), [(PIPX, "pipx install --force"), (UV, "uv tool install --force"), (PIP, "pip install")]
)
def test_missing_extra_is_installed_with_the_program_that_installed_posthouse(
    installed: Path, monkeypatch: pytest.MonkeyPatch, environment: str, install: str
) -> None:
    monkeypatch.setattr(sys, "prefix", environment)
    monkeypatch.setattr(extras, "LIBRARIES", {})
    assert extras.install_hint("console") == (
        f"Run `{install} 'posthouse[console]'`, or in a checkout `{install} '.[console]'`."
    )


def test_missing_extra_comes_from_the_file_that_posthouse_was_installed_from(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", PIP)
    wheel = tmp_path / "re leases" / "posthouse-0.1.0-py3-none-any.whl"
    record(installed, wheel, archive_info={})
    assert "'posthouse[ssh]'" in extras.install_hint("ssh"), "the file is not there any more"
    wheel.parent.mkdir()
    wheel.touch()
    assert extras.install_hint("ssh") == f"Run `pip install '{wheel}[ssh]'`."
    record(installed, tmp_path, dir_info={"editable": True})
    assert extras.install_hint("ssh") == f"Run `pip install --editable '{tmp_path}[ssh]'`."


@pytest.mark.parametrize("environment", [PIPX, UV])
def test_tool_that_is_installed_anew_keeps_its_extras(
    installed: Path, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    monkeypatch.setattr(sys, "prefix", environment)
    monkeypatch.setattr(extras, "LIBRARIES", {"pinch": "no_such_library.of_pinch", "console": "json"})
    assert "'posthouse[console,ssh]'" in extras.install_hint("ssh")
    assert "'posthouse[console]'" in extras.install_hint("console")
