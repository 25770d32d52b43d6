"""RabbitMQ: quorum queues with publisher confirms, a consumer with a prefetch window, a fanout exchange.

A quorum queue writes each message to its log and syncs it before the confirm, on one node as on three. Consumers'
acknowledgements have no answer in AMQP; a drain ends with a call that the server answers after it took them all.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers.server_process import LOOPBACK, ServerProcess, can_connect, find_server, free_ports
from bench.peers.subscribers import SubscriberProcess
from bench.peers.works import BODY, READER_BATCH, Configuration, Contestant, Operation, Work
from bench.scales import IN_FLIGHT, QUEUE

_BODY = BODY.encode()
_LOG, _QUEUE, _FAN_OUT = "log", "queue", "fan_out"
_QUORUM = {"x-queue-type": "quorum"}
_ACK_EVERY = 50


class RabbitMq(Contestant):
    """One node, its port mapper, and one connection of aio-pika."""

    name = "RabbitMQ"
    client_modules = ("aio_pika", "pamqp")
    programs = ("rabbitmq-server", "epmd")

    def __init__(self) -> None:
        super().__init__()
        self._subscribers = SubscriberProcess("rabbitmq")

    async def start(self, folder: Path) -> Configuration:
        import aio_pika

        program, mapper = find_server("rabbitmq-server"), find_server("epmd")
        assert program is not None and mapper is not None
        port, mapper_port, node_port = free_ports(3)
        # Without a port mapper of its own, the node would start one that outlives it.
        mapper_folder = folder / "epmd"
        mapper_folder.mkdir()
        names = ServerProcess([mapper, "-port", str(mapper_port), "-address", LOOPBACK], mapper_folder)
        self._stack.callback(names.stop)
        await names.wait_ready(lambda: can_connect(mapper_port))
        node = ServerProcess([program], folder, environment=_environment(folder, port, mapper_port, node_port))
        self._stack.callback(node.stop)
        await node.wait_ready(lambda: can_connect(port))
        self._connection: Any = await aio_pika.connect(f"amqp://guest:guest@{LOOPBACK}:{port}/")
        self._stack.push_async_callback(self._connection.close)
        await self._declare()
        self._subscribers.port = port
        self._stack.push_async_callback(self._subscribers.stop)
        version = self._connection.transport.connection.server_properties["version"]
        durability = "quorum queues and publisher confirms: the log is synced before the confirm"
        client = f"aio-pika {importlib.metadata.version('aio-pika')}"
        settings = {"queues": "x-queue-type quorum, durable, persistent messages", **_settings(port)}
        return Configuration(f"RabbitMQ {version}", durability, client, settings)

    async def _declare(self) -> None:
        import aio_pika

        self._message = aio_pika.Message(_BODY, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        self._channel = await self._connection.channel(publisher_confirms=True)
        self._reading = await self._connection.channel()
        await self._reading.set_qos(prefetch_count=READER_BATCH)
        for name in (_LOG, _QUEUE, _FAN_OUT):
            await self._channel.declare_queue(name, durable=True, arguments=_QUORUM)
        self._queue = await self._reading.get_queue(_QUEUE)
        self._exchange = await self._channel.declare_exchange(_FAN_OUT, aio_pika.ExchangeType.FANOUT, durable=True)
        await (await self._channel.get_queue(_FAN_OUT)).bind(self._exchange)

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._publish)],
            Work.PUBLISH_64: [Operation(self.name, self._publish_64)],
            Work.DRAIN: [Operation(self.name, self._drain, self._fill)],
            Work.FAN_OUT: [Operation(self.name, self._fan_out, self._subscribers.start)],
        }

    async def _publish(self) -> None:
        await self._channel.default_exchange.publish(self._message, _LOG)

    async def _publish_64(self) -> None:
        await self._publish_many(self._channel.default_exchange, _LOG, IN_FLIGHT)

    async def _publish_many(self, exchange: Any, routing_key: str, count: int) -> None:
        await asyncio.gather(*(exchange.publish(self._message, routing_key) for _ in range(count)))

    async def _fill(self) -> None:
        await self._publish_many(self._channel.default_exchange, _QUEUE, QUEUE)

    async def _drain(self) -> None:
        read, is_drained = 0, asyncio.Event()

        async def receive(message: Any) -> None:
            nonlocal read
            read += 1
            if read % _ACK_EVERY == 0:
                await message.ack(multiple=True)
            if read == QUEUE:
                is_drained.set()

        tag = await self._queue.consume(receive)
        await is_drained.wait()
        await self._queue.cancel(tag)

    async def _fan_out(self) -> None:
        async with self._subscribers.expecting(IN_FLIGHT):
            await self._publish_many(self._exchange, "", IN_FLIGHT)


def _settings(port: int) -> dict[str, str]:
    return {"listeners.tcp.1": f"{LOOPBACK}:{port}", "log.console.level": "warning"}


def _environment(folder: Path, port: int, mapper_port: int, node_port: int) -> dict[str, str]:
    """Return what keeps the node in its folder and on the loopback interface."""
    settings = folder / "rabbitmq.conf"
    settings.write_text("".join(f"{name} = {value}\n" for name, value in _settings(port).items()))
    (folder / "plugins").write_text("[].")
    return {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_CONFIG_FILE": str(settings),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        # the script of the server becomes the node instead of its parent
        "RABBITMQ_ALLOW_INPUT": "1",
        "ERL_EPMD_PORT": str(mapper_port),
        "ERL_EPMD_ADDRESS": LOOPBACK,
    }
