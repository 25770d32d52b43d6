"""A store from before webhooks opens, keeps its events, and serves webhooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from posthouse.relay.store.sqlite import store as sqlite_store
from tests.relay.edge import Author, running
from tests.relay.webhooks.receivers import LOOPBACK, Receiver, add_webhook


async def test_a_store_from_before_webhooks_keeps_its_events_and_serves_webhooks(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    author, data_dir = Author(), tmp_path / "relay"
    former = tuple(each for each in sqlite_store.COMPONENTS if each.name != "webhooks")
    with monkeypatch.context() as before:
        before.setattr(sqlite_store, "COMPONENTS", former)
        before.setattr("posthouse.relay.webhooks.dispatcher.Dispatcher.start", lambda _self: None)
        async with running(data_dir) as edge:
            await edge.publish(author.event(1, "old"))
    async with running(data_dir, sending=LOOPBACK) as edge:
        await add_webhook(edge, author, receiver.url)
        await edge.publish(author.event(1, "new"))
        await receiver.until(1)
        found = (await edge.get("/v1/events?kinds=1", await edge.token(author))).value["events"]
    assert [each["content"] for each in found] == ["old", "new"]
    assert receiver.contents == ["new"]
