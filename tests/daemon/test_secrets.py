"""Nothing secret is in a log, an error or a journal: neither token nor key nor what people write."""

from __future__ import annotations

import json

import aiohttp
import structlog

from posthouse.keys import keyfile
from tests.client.house import House
from tests.daemon.hosts import Host, host_at

BODY = "the body of a message that nobody else may read"
META = "meta-that-is-not-for-logs"


async def use_everything(alice: Host, bob: Host) -> str:
    """Send, fail, crash and be attacked; return everything that was answered."""
    token = alice.daemon.directory.token()
    answers = [await alice.send(bob.node, BODY, meta={"k": META}, client_message_id="c")]
    await bob.until_bodies(1)
    answers.append(await alice.send(bob.node, "other", client_message_id="c"))
    answers.append(await alice.send("nobody", BODY))
    answers.append(await alice.get("/v1/health", token=token))

    requests = (
        {"Authorization": f"Bearer {token[:-1]}"},
        {"Authorization": token},
        {"Authorization": f"Bearer {token}", "Host": "evil.example"},
    )
    async with aiohttp.ClientSession() as session:
        for headers in requests:
            url = f"http://127.0.0.1:{alice.daemon.port}/v1/health?token={token}"
            for address in (url, url.partition("?")[0]):
                async with session.get(address, headers=headers) as response:
                    answers.append(await response.json())
    broken = alice.mesh.outbox.depth

    async def fail() -> object:
        secret = (token, BODY)
        raise RuntimeError(f"{len(secret)} values")

    alice.mesh.outbox.depth = fail  # type: ignore[method-assign, assignment]
    answers.append(await alice.get("/v1/health"))
    alice.mesh.outbox.depth = broken  # type: ignore[method-assign]
    return json.dumps([getattr(answer, "body", answer) for answer in answers], default=repr)


async def test_no_secret_is_logged_or_answered(house: House) -> None:
    with structlog.testing.capture_logs() as logged:
        async with host_at(house, "alice", tcp="on") as alice, host_at(house, "bob") as bob:
            answered = await use_everything(alice, bob)
            directory = alice.daemon.directory
            seed = keyfile.load(alice.mesh.directory.key).reveal_seed().hex()
            token = directory.token()
    text = json.dumps(logged, default=repr)
    assert "security" in text
    assert "request_failed" in text
    for secret in (token, token[:-1], seed, BODY, META):
        assert secret not in text
    for secret in (token, token[:-1], seed, BODY):
        assert secret not in answered


async def test_the_outbox_keeps_no_direct_message_in_the_clear(house: House) -> None:
    async with host_at(house, "alice") as alice:
        await alice.send(alice.node, BODY, client_message_id="c")
        await alice.until_status("c", "done")
    for path in alice.mesh.directory.root.glob("outbox.db*"):
        assert BODY.encode() not in path.read_bytes()
