"""etcd: one key per message, and, as a lock, a key that is created only if it does not exist.

The client speaks gRPC, etcd's own protocol. 64 at once are 64 puts in flight on one connection, and each gets its own
answer, as the publishes of the other systems do. etcd can also write 64 puts as one transaction, which it syncs as one
entry of its log; they succeed or fail together, so the report shows that rate beside the other.

The requests are written in the Protocol Buffers encoding by hand: they have seven fields in all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path

from bench.peers.server_process import LOOPBACK, ServerProcess, find_server, free_ports, server_version
from bench.peers.works import BODY, ETCD_TRANSACTION, Configuration, Contestant, Operation, Work
from bench.scales import IN_FLIGHT

Call = Callable[[bytes], Awaitable[bytes]]
_LEASE_ID, _LEASE_S = 1, 3_600
_CREATE_REVISION = 1  # what a comparison of a transaction looks at
_LENGTH_DELIMITED = 2  # wire type


def _number(value: int) -> bytes:
    """Return a varint: seven bits in each byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return _number(number << 3) + _number(value)
    return _number(number << 3 | _LENGTH_DELIMITED) + _number(len(value)) + value


_BODY, _LOCK = BODY.encode(), b"lock"
# Compare: target, key and the expected create revision, which is 0 if there is no such key
_IS_FREE = _field(2, _CREATE_REVISION) + _field(3, _LOCK) + _field(5, 0)
_TAKE = _field(1, _LOCK) + _field(2, b"owner") + _field(3, _LEASE_ID)  # PutRequest: key, value, lease
_ACQUIRE = _field(1, _IS_FREE) + _field(2, _field(2, _TAKE))  # TxnRequest: compare, success
_RELEASE = _field(1, _LOCK)  # DeleteRangeRequest


def _has_succeeded(answer: bytes) -> bool:
    """Return whether the comparison of a transaction held."""
    header_bytes = answer[1]  # of the first field, whose length fits into one byte
    return answer[2 + header_bytes :].startswith(_field(2, 1))


class Etcd(Contestant):
    """One member and one connection."""

    name = "etcd"
    client_modules = ("grpc",)
    programs = ("etcd",)

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    async def start(self, folder: Path) -> Configuration:
        import grpc

        program = find_server("etcd")
        assert program is not None
        client_port, peer_port = free_ports(2)
        clients, peers = (f"http://{LOOPBACK}:{port}" for port in (client_port, peer_port))
        settings = {
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"bench={peers}",
            "logger": "zap",
        }
        flags = [f"--{name}={value}" for name, value in settings.items()]
        server = ServerProcess([program, "--name=bench", f"--data-dir={folder / 'data'}", *flags], folder)
        self._stack.callback(server.stop)
        channel = grpc.aio.insecure_channel(f"{LOOPBACK}:{client_port}")
        self._stack.push_async_callback(channel.close)
        calls: list[Call] = [
            channel.unary_unary(f"/etcdserverpb.{method}", request_serializer=None, response_deserializer=None)
            for method in ("KV/Put", "KV/Txn", "KV/DeleteRange", "Lease/LeaseGrant")
        ]
        self._put, self._transact, self._delete, grant_lease = calls
        await server.wait_ready(lambda: self._delete(_RELEASE), grpc.RpcError)
        await grant_lease(_field(1, _LEASE_S) + _field(2, _LEASE_ID))
        durability = "the default: the Raft log is synced before the answer"
        return Configuration(server_version(program, "--version"), durability, f"grpcio {grpc.__version__}", settings)

    def operations(self) -> Mapping[Work, Sequence[Operation]]:
        return {
            Work.PUBLISH: [Operation(self.name, self._publish)],
            Work.PUBLISH_64: [
                Operation(self.name, self._publish_64),
                Operation(ETCD_TRANSACTION, self._publish_transaction),
            ],
            Work.LOCK: [Operation(self.name, self._lock)],
        }

    async def _publish(self) -> None:
        await self._put(self._message())

    async def _publish_64(self) -> None:
        await asyncio.gather(*(self._put(self._message()) for _ in range(IN_FLIGHT)))

    async def _publish_transaction(self) -> None:
        await self._transact(b"".join([_field(2, _field(2, self._message())) for _ in range(IN_FLIGHT)]))

    async def _lock(self) -> None:
        if not _has_succeeded(await self._transact(_ACQUIRE)):
            raise RuntimeError("etcd did not grant a free lock")
        await self._delete(_RELEASE)

    def _message(self) -> bytes:
        return _field(1, b"log/%012d" % next(self._numbers)) + _field(2, _BODY)
