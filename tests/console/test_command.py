"""`posthouse console` as a person starts it: a process, a link, a browserless visitor, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from posthouse.keys import keyfile
from tests.client.house import ADMIN, open_house
from tests.client.waiting import PATIENCE_S
from tests.daemon.hosts import eventually

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def started(
    home: Path, *words: str, form: str = "json"
) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """Run `posthouse console` and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("POSTHOUSE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "posthouse.cli.main", "console", "--no-browser", "--output", form, *words,
        env=inherited | {"POSTHOUSE_HOME": str(home), "PYTHONPATH": str(ROOT / "src")},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stderr is not None
        async with asyncio.timeout(PATIENCE_S * 3):
            line = await process.stdout.readline()
        assert line, (await process.stderr.read()).decode()
        yield process, json.loads(line) if form == "json" else {"text": line.decode()}
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_command_serves_without_a_daemon_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        home = make_home(tmp_path)
        async with started(home, "--relay", house.url) as (process, said):
            page = await content(said, "/data/team")
            assert "daemon" in page and "No messages between agents in the last hour." in page
            assert "Every queue is empty." in await content(said, "/data/queues")
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE_S):
                printed = (await process.stderr.read()).decode()
                assert await process.wait() == 0
            assert printed == "", "a program reads the errors of --json"


async def test_people_are_told_that_no_daemon_runs_and_see_no_log(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        async with started(make_home(tmp_path), "--relay", house.url, form="table") as (process, said):
            assert process.stderr is not None and "the console of mesh main" in said["text"]
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(PATIENCE_S):
                printed = (await process.stderr.read()).decode()
        assert "no daemon runs on this host" in printed and "`posthouse up`" in printed
        assert "upstream_lost" not in printed


async def test_the_console_waits_for_a_relay_that_is_away(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        await house.down()
        async with started(make_home(tmp_path), "--relay", house.url) as (_process, said):
            assert "relay" in await content(said, "/data/health")
            await house.up()
            await eventually(lambda: content(said, "/data/health"), lambda page: "version" in page)


def make_home(folder: Path) -> Path:
    home = folder / "home"
    home.mkdir(mode=0o700)
    keyfile.create(home / "key.json", ADMIN)
    return home


_tokens: dict[str, str] = {}


async def content(said: dict[str, Any], path: str) -> str:
    """Return the content of a page; the first call spends the link."""
    origin = {"Origin": said["url"]}
    async with aiohttp.ClientSession() as session:
        if said["link"] not in _tokens:
            code = said["link"].partition("#link=")[2]
            async with session.post(f"{said['url']}/session", json={"code": code}, headers=origin) as response:
                _tokens[said["link"]] = (await response.json())["token"]
        headers = {"Authorization": f"Bearer {_tokens[said['link']]}"}
        async with session.get(said["url"] + path, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.text()
