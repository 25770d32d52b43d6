"""A relay process that speaks Pinch: its flag, the environment of a Pinch relay, and the operator's commands."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from examples.pinch_agent.agent import Agent
from posthouse.files import private_dir
from posthouse.keys import keyfile
from tests.relay.edge import PATIENCE_S
from tests.relay.pinch.house import HOST, QUEUE_FULL
from tests.relay.process.relay import COMMAND, environment, relay_process

pytestmark = pytest.mark.sqlite

CLI = (sys.executable, "-m", "posthouse.cli.main")


async def run(home: Path, *command: str, **environ: str) -> tuple[int, str, str]:
    """Run a command to its end; return exit code, stdout and stderr."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=environment(home) | environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(2 * PATIENCE_S):
        out, err = await process.communicate()
    return int(process.returncode or 0), out.decode(), err.decode()


@asynccontextmanager
async def relay_with(home: Path, *options: str, **environ: str) -> AsyncIterator[str]:
    """Run a relay with an environment; yields its URL."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--json", *options, env=environment(home) | environ, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            yield json.loads(await process.stdout.readline())["url"]
    finally:
        process.kill()
        await process.wait()


async def health(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url + "/health") as response:
        return response.status, await response.json()


async def test_flag_enables_pinch_and_nothing_else_does(tmp_path: Path) -> None:
    async with relay_process(tmp_path / "with", "--pinch-host", HOST) as relay:
        status, value = await health(relay.ready["url"])
        assert (status, value["connections"], value["relay_host"]) == (200, 0, HOST)
    async with relay_process(tmp_path / "without") as relay:
        assert (await health(relay.ready["url"]))[0] == 404


async def test_environment_of_a_pinch_relay_is_understood(tmp_path: Path) -> None:
    environ = {
        "PINCH_RELAY_PUBLIC_HOST": HOST,
        "PINCH_RELAY_PORT": "0",
        "PINCH_RELAY_QUEUE_MAX": "5",
        "PINCH_RELAY_QUEUE_TTL": "24",
        "PINCH_RELAY_RATE_LIMIT": "0.5",
        "PINCH_RELAY_RATE_BURST": "7",
        "PINCH_RELAY_ALLOWED_ORIGINS": "https://page.test",
    }
    async with relay_with(tmp_path, **environ) as url, Agent(HOST) as alice, asyncio.timeout(2 * PATIENCE_S):
        await alice.connect(url)
        bob = Agent(HOST).address
        await alice.write(Agent(HOST).address, "the first of seven")
        ids = [await alice.write(bob, str(number)) for number in range(6)]
        refusal = await alice.receive()
        assert (refusal.type, refusal.message_id.decode()) == (QUEUE_FULL, ids[5])
        await alice.write(bob, "beyond the burst of seven")
        assert (await alice.receive()).rate_limited.retry_after_ms > 1_000


@pytest.mark.parametrize(
    ("variable", "text", "code"),
    [
        ("PINCH_RELAY_PORT", "eighty", "setting_invalid"),
        ("PINCH_RELAY_PUBLIC_HOST", "two words", "pinch_host_invalid"),
        ("PINCH_RELAY_QUEUE_MAX", "-5", "setting_invalid"),
        ("PINCH_RELAY_QUEUE_TTL", "a week", "setting_invalid"),
        ("PINCH_RELAY_RATE_LIMIT", "0", "setting_invalid"),
        ("PINCH_RELAY_RATE_BURST", "ten", "setting_invalid"),
        ("PINCH_RELAY_ALLOWED_ORIGINS", "https://a.test,,b c", "pinch_origins_invalid"),
    ],
)
async def test_bad_value_in_the_environment_is_refused_at_start(
    tmp_path: Path, variable: str, text: str, code: str
) -> None:
    command = (*COMMAND, "--json", "--listen", "127.0.0.1:0")
    exit_code, out, err = await run(tmp_path, *command, **{variable: text})
    assert exit_code != 0
    assert out == ""
    assert json.loads(err.splitlines()[-1])["code"] == code
    assert not (tmp_path / ".posthouse" / "relay" / "relay.db").exists()


async def test_operator_lists_queues_and_checks_the_store(tmp_path: Path) -> None:
    home = private_dir(tmp_path / ".posthouse")
    keyfile.create(home / "key.json")
    async with relay_with(tmp_path, "--listen", "127.0.0.1:0", "--pinch-host", HOST) as url, Agent(HOST) as alice:
        bob = Agent(HOST)
        await alice.connect(url)
        await alice.write(bob.address, "waiting")
        last = alice.compose(alice.address, "all was taken")
        await alice.send(last)
        async with asyncio.timeout(PATIENCE_S):
            while (await alice.receive()).message_id != last.message_id:  # a QUEUE_STATUS may come before it
                pass
        reach = ("--mesh", "pinch", "--relay", url, "--json")
        code, out, err = await run(tmp_path, *CLI, "queue", "ls", *reach)
        assert code == 0, err
        assert bob.address in [each["recipient"] for each in json.loads(out)["queues"]]
        code, out, err = await run(tmp_path, *CLI, "queue", "show", bob.address, *reach)
        assert code == 0, err
        (row,) = json.loads(out)["rows"]
        assert (row["sender"], row["state"]) == (alice.address, "queued")
        code, out, err = await run(tmp_path, *CLI, "queue", "purge", bob.address, *reach)
        assert (code, json.loads(out)["purged"]) == (0, [row["id"]]), err
    code, out, err = await run(tmp_path, *CLI, "relay", "check")
    assert code == 0, (out, err)
