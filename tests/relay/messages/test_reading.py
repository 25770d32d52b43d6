"""A mailbox among other things that the same node does, each as a real process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from posthouse.keys import NodeKey, keyfile
from tests.relay.messages.town import PATIENCE_S, some, town


async def test_event_tail_with_the_readers_key_does_not_disturb_the_mailbox(tmp_path: Path) -> None:
    key = NodeKey.generate()
    keyfile.create(tmp_path / "bob.json", key)
    async with town(tmp_path) as place:
        alice, bob = await place.client(), await place.client(key)
        mailbox = await bob.receive()
        tail = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "posthouse.cli.main", "event", "tail", "--kind", "1000", "--count", "3", "--json"),
            *("--key-file", str(tmp_path / "bob.json"), "--relay", place.relay.url),
            env=os.environ | {"POSTHOUSE_HOME": str(tmp_path / "home of bob")},
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(3):
            await alice.send(bob.key.node, str(number))
        out, _ = await asyncio.wait_for(tail.communicate(), PATIENCE_S)
        assert [json.loads(line)["plaintext"] for line in out.splitlines()] == ["0", "1", "2"]
        assert [each.body for each in await some(mailbox, 3)] == ["0", "1", "2"]
        assert bob.statistics()["connections"] == 1


async def test_messages_are_there_once_for_whoever_sends_them_from_fifty_connections(tmp_path: Path) -> None:
    key = NodeKey.generate()
    async with town(tmp_path) as place:
        bob = await place.client()
        senders = [await place.client(key) for _ in range(50)]
        event = await senders[0].compose(bob.key.node, "one of fifty", client_message_id="c-1")
        await asyncio.gather(*(sender.connect() for sender in senders))
        answers = await asyncio.gather(*(sender.send_event(event) for sender in senders))
        assert sorted(answer.duplicate for answer in answers) == [False] + [True] * 49
        assert {(answer.id, answer.seq) for answer in answers} == {(event.id, answers[0].seq)}
        mailbox = await bob.receive()
        await senders[0].send(bob.key.node, "behind it")
        assert [each.body for each in await some(mailbox, 2)] == ["one of fifty", "behind it"]


async def test_new_messages_during_a_backlog_arrive_after_it(tmp_path: Path) -> None:
    async with town(tmp_path) as place:
        alice, carol, bob = await place.client(), await place.client(), await place.client()
        backlog = [await alice.compose(bob.key.node, f"backlog-{number}") for number in range(400)]
        await alice.publish_many(backlog)
        mailbox = await bob.receive(window=20)
        bodies = [each.body for each in await some(mailbox, 20)]
        sending = asyncio.gather(*(carol.send(bob.key.node, f"new-{number}") for number in range(20)))
        bodies += [each.body for each in await some(mailbox, 400)]
        await sending
        assert bodies[:400] == [f"backlog-{number}" for number in range(400)]
        assert bodies[400:] == [f"new-{number}" for number in range(20)]


async def test_poison_in_front_of_good_messages_is_parked_and_the_good_ones_arrive(tmp_path: Path) -> None:
    async with town(tmp_path, "--confirm-timeout-s", "0.3") as place:
        alice, bob = await place.client(), await place.client()
        poison = [await alice.send(bob.key.node, f"poison-{number}") for number in range(60)]
        good = [await alice.send(bob.key.node, f"good-{number}") for number in range(5)]
        mailbox = await bob.receive(window=50)
        arrived: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(arrived) < len(good):
                taken = [each for each in await mailbox.take() if each.body.startswith("good")]
                arrived += [each.id for each in taken if each.id not in arrived]
                mailbox.confirm(*taken)
        assert arrived == [each.id for each in good]
        async with asyncio.timeout(PATIENCE_S):
            while len(await bob.queues.rows("main", bob.key.node, state="dead")) < len(poison):  # noqa: ASYNC110 - a poll
                await asyncio.sleep(0.05)
        states = [(await alice.message(each.id)).deliveries[0] for each in poison]
        assert {(each.state, each.reason) for each in states} == {("dead", "confirm_timeout")}
