"""The memory of real, idle processes stays below a generous bound; `python -m bench memory` measures what it is."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command_line import CommandLine


def test_memory(bench: CommandLine, tmp_path: Path) -> None:
    outcome = bench("memory", "--quick", "--dir", str(tmp_path), "--json")
    assert outcome.exit == 0
    report = outcome.value
    assert [each["name"] for each in report["required"]] == [
        "idle relay, MB",
        "idle daemon, MB",
        "KB per idle connection",
    ]
    for server in ("relay", "daemon"):
        assert 10 < report[server]["private_mb"] < report[server]["rss_mb"] < 100
    assert 0 < report["connection"]["kb"] < 100
