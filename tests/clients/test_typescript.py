"""The TypeScript client: its tests run with Node's own runner, against a relay and a Python client of this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from posthouse.client import Client
from posthouse.client.messages.receiver import Mailbox
from tests.client.house import ADMIN, House, open_house
from tests.docs.pages import ROOT, blocks_of

PACKAGE = ROOT / "clients" / "typescript"
#: bound of the whole run of Node's tests, which take a few seconds
PATIENCE_S = 240
OLDEST_NODE = (20, 19)


def missing() -> str | None:
    """Return why the tests cannot run here."""
    node = shutil.which("node")
    if node is None:
        return "no Node: install Node 20.19 or newer and run scripts/setup"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_NODE:
        return f"Node {version.strip()} is older than 20.19"
    if not (PACKAGE / "node_modules").is_dir():
        return "no packages in clients/typescript/node_modules: run scripts/setup with a network"
    return None


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The package, compiled by the strict compiler."""
    if reason := missing():
        pytest.skip(f"the TypeScript client is not tested: {reason}")
    compiler = ["node", "node_modules/typescript/bin/tsc"]
    done = subprocess.run(compiler, cwd=PACKAGE, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as running:
        yield running


async def run_node(*arguments: str, **environ: str) -> str:
    """Run a program of the package and return what it printed; it must succeed."""
    process = await asyncio.create_subprocess_exec(
        "node",
        *arguments,
        cwd=PACKAGE,
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def invite_many(house: House) -> str:
    """Return an invite to a closed mesh, for any number of members."""
    admin = house.client(ADMIN)
    await admin.meshes.create("team", name="admin")
    return str(await admin.meshes.invite("team", uses=100))


async def answer_messages(house: House, client: Client, mailbox: Mailbox, heard: list[str]) -> None:
    """Answer messages of the TypeScript client, and restart the relay if one says so."""
    async for delivery in mailbox:
        await mailbox.confirm(delivery)
        heard.append(delivery.body)
        said = f"you said: {delivery.body}"
        if delivery.body == "restart the relay":
            await house.down()
            await house.up()
            said = "it is back"
        await client.send(delivery.sender, said, reply_to=delivery.id, to_agent=delivery.from_agent)


async def test_the_client_keeps_the_protocol_and_talks_to_the_python_client(house: House) -> None:
    invite = await invite_many(house)
    partner = house.client(mesh="team")
    await partner.join(await house.clients[0].meshes.invite("team"), "partner")
    heard: list[str] = []
    async with await partner.receive() as mailbox:
        answering = asyncio.create_task(answer_messages(house, partner, mailbox, heard))
        settings = json.dumps({"invite": invite, "partner": partner.key.node})
        tests = sorted(str(path) for path in (PACKAGE / "dist" / "tests").glob("*.test.js"))
        output = await run_node("--test", *tests, POSTHOUSE_TEST_RELAY=settings)
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering
    assert re.search(r"^# fail 0$", output, re.M) and not re.search(r"^# pass 0$", output, re.M), output
    assert heard == ["café ☕", "restart the relay"]


async def test_the_program_of_the_readme_compiles_and_runs(house: House) -> None:
    [program] = [block.body for block in blocks_of("clients/typescript/README.md") if block.language == "ts"]
    assert program == (PACKAGE / "examples" / "first-steps.ts").read_text()
    assert (
        await run_node("dist/examples/first-steps.js", INVITE=await invite_many(house))
        == "hello, team\nnote to myself\n"
    )
