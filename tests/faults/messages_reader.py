"""A reader in a process of its own: writes down each message before it confirms it, until it is killed.

    python -m tests.faults.messages_reader URL KEY_HEX WINDOW careful|hasty

Lines: `D connection seq number was_stored attempt` for each message handed out, `C connection number` once the
relay has answered that it is confirmed, `R number time` once the relay has its receipt; the time is the seq, so that a
second one equals it. `hasty` confirms first and writes down a moment later; for the control only.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from posthouse.client import Client, ClientOptions, ConfirmAnswer, Delivery, Mailbox, Pins
from posthouse.keys import NodeKey

#: nothing under test: patient enough for a relay that is killed on a busy machine
OPTIONS = ClientOptions(reconnect_most_s=0.05, connect_timeout_s=30)
_BATCH = 7  # confirmed together, so that a kill finds some confirmed and some not
_LATE_S = 0.05
_GATHER_S = 0.02  # so that a kill finds some receipts sent and some not


async def main(url: str, key: NodeKey, window: int, manner: str) -> None:
    """Read until the process ends."""
    async with Client(url, key, pins=Pins(None), options=OPTIONS) as client:
        await client.connect(is_patient=True)
        client.receipts.gather_s = _GATHER_S
        mailbox = await client.receive(window=window)
        while deliveries := await mailbox.take(_BATCH):
            connection = client.statistics()["connections"]
            if manner == "hasty":
                await mailbox.confirm(*deliveries)
                await asyncio.sleep(_LATE_S)
            _tell(connection, deliveries)
            if manner == "careful":
                _confirm(client, mailbox, deliveries)
                for each in deliveries:
                    _send_receipt(client, each)
                await asyncio.sleep(0)


def _tell(connection: int, deliveries: Sequence[Delivery]) -> None:
    for each in deliveries:
        told = (connection, each.seq, each.body, int(each.was_stored), each.attempt)
        sys.stdout.write(f"D {' '.join(map(str, told))}\n")
    sys.stdout.flush()


def _confirm(client: Client, mailbox: Mailbox, deliveries: Sequence[Delivery]) -> None:
    numbers = {each.id: each.body for each in deliveries}

    def answered(done: asyncio.Future[ConfirmAnswer]) -> None:
        if not done.cancelled() and done.exception() is None:
            connection = client.statistics()["connections"]
            for message_id in done.result().confirmed:
                sys.stdout.write(f"C {connection} {numbers[message_id]}\n")
            sys.stdout.flush()

    asyncio.ensure_future(mailbox.confirm(*deliveries)).add_done_callback(answered)


def _send_receipt(client: Client, delivery: Delivery) -> None:
    def answered(done: asyncio.Future[bool]) -> None:
        if not done.cancelled() and done.exception() is None and done.result():
            sys.stdout.write(f"R {delivery.body} {delivery.seq}\n")
            sys.stdout.flush()

    receipts, agent = client.receipts, delivery.to_agent
    future = receipts.add(delivery.id, delivery.sender, mesh=delivery.mesh, at_ms=delivery.seq, agent=agent)
    future.add_done_callback(answered)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], NodeKey(bytes.fromhex(sys.argv[2])), int(sys.argv[3]), sys.argv[4]))
