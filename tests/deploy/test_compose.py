"""The services of deploy/compose.yaml, run with the programs of this machine: their commands, settings and files.

No container engine is needed. PostgreSQL and Prometheus are Debian's, not those of the images; Grafana is not started.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from posthouse.keys import NodeKey
from tests.deploy.test_monitoring import DEPLOY, PATIENCE_S, PROMETHEUS, ask, needs_prometheus
from tests.postgresql.server import PostgresServer
from tests.relay.cluster.relays import free_port
from tests.relay.process.relay import COMMAND, environment

NOT_ROOT = "the service `prepare` gives files to other users: only root can"
RELAY_USER, PROMETHEUS_USER = 65532, 65534


def services(**values: str) -> dict[str, Any]:
    """Return the services with the variables of deploy/.env filled in."""
    text = re.sub(r"\$\{(\w+)[^}]*\}", lambda found: values[found[1]], (DEPLOY / "compose.yaml").read_text())
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def prepare(service: Mapping[str, Any], folder: Path) -> Path:
    """Run the service that makes the token, with a folder in the place of its volume."""
    [script] = service["command"]
    command = [*service["entrypoint"], script.replace(" /token", f" {folder}")]
    file = folder / "relay" / "token"
    file.parent.mkdir(parents=True)
    file.write_text("a/token+that+the/relay/refuses\n")
    file.chmod(0o600)
    tokens = []
    for _ in range(2):  # a second start keeps the token
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
        tokens.append(file.read_text())
    token = tokens[0]
    assert tokens == [token, token] and "refuses" not in token
    for name, user in (("relay", RELAY_USER), ("prometheus", PROMETHEUS_USER)):
        found = (folder / name / "token").stat()
        assert (found.st_uid, found.st_mode & 0o777, (folder / name / "token").read_text()) == (user, 0o600, token)
    return folder


@asynccontextmanager
async def running(*command: str, env: Mapping[str, str] | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    # its stderr is that of the test, which shows it in a failure
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            process.kill()
        await process.communicate()


async def until_up(address: str) -> None:
    """Wait until Prometheus has read the metrics of the relay with its token."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                found = (await ask(address, "query", query='up{job="posthouse-relay"}'))["result"]
                if found and found[0]["value"][1] == "1":
                    return
            except aiohttp.ClientError:
                pass  # it is still starting
            await asyncio.sleep(0.2)


@needs_prometheus
@pytest.mark.skipif(os.geteuid() != 0, reason=NOT_ROOT)
async def test_prometheus_reads_a_relay_on_postgresql_as_the_compose_file_sets_them_up(
    tmp_path: Path, postgres: PostgresServer, database: str
) -> None:
    port, admin = free_port(), NodeKey.generate().node
    found = services(
        RELAY_HOST=f"127.0.0.1:{port}", RELAY_ADMIN=str(admin), POSTGRES_PASSWORD="secret", GRAFANA_PASSWORD="secret"
    )
    kind, *check = found["database"]["healthcheck"]["test"]
    assert kind == "CMD"
    postgres.run(check[0], "--host", str(postgres.folder), *check[1:])
    token = prepare(found["prepare"], tmp_path / "token")
    own_token = tmp_path / "own-token"
    shutil.copyfile(token / "relay" / "token", own_token)  # the relay of this test is not the user of the image
    own_token.chmod(0o600)
    replaced = {
        "POSTHOUSE_RELAY_STORE": database,
        "POSTHOUSE_RELAY_METRICS_TOKEN_FILE": str(own_token),
        "POSTHOUSE_RELAY_LISTEN": f"127.0.0.1:{port}",
    }
    env = environment(tmp_path) | found["relay"]["environment"] | replaced
    async with running(*COMMAND, "--json", env=env) as relay:
        assert relay.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await relay.stdout.readline(), "the relay did not start"
        await metrics_answer(port, "relay:7420", (token / "prometheus" / "token").read_text().strip())
        listen = f"127.0.0.1:{free_port()}"
        async with running(*prometheus_command(found["prometheus"], tmp_path, token, port), listen_flag(listen)):
            await until_up(f"http://{listen}")


async def metrics_answer(port: int, host: str, token: str) -> None:
    """Check that the relay answers under the name that it has inside of compose, with the token and not without."""
    async with aiohttp.ClientSession(headers={"Host": host}) as session:
        for headers, status in (({"Authorization": f"Bearer {token}"}, 200), ({}, 401)):
            async with session.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as response:
                assert response.status == status


def listen_flag(address: str) -> str:
    return f"--web.listen-address={address}"


def prometheus_command(service: Mapping[str, Any], folder: Path, token: Path, port: int) -> list[str]:
    """Return the command of the service, with folders and names of this machine in the place of those of compose."""
    config = folder / "prometheus"
    shutil.copytree(DEPLOY / "prometheus", config)
    file = config / "compose.yml"
    text = file.read_text()
    assert "relay:7420" in text and "/token/" in text
    file.write_text(
        text.replace("relay:7420", f"127.0.0.1:{port}").replace("/token/", f"{token}/").replace("15s", "1s")
    )
    given = [word.replace("/etc/prometheus", str(config)) for word in service["command"]]
    return [PROMETHEUS or "", *(word.replace("=/prometheus", f"={folder / 'series'}") for word in given)]
