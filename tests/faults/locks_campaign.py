"""A campaign against locks: eight clients fight while processes stop, the relay is killed or restored, and clocks step.

The clients are sessions of four nodes. One lock has two names: itself, and the tree above it. Another one is shared by
most of its holders.

A request without an answer has an unknown outcome, but not for ever: it was sent on one connection, to the process
that listened when that connection was made. That process had started by then, and nothing it does comes after its
death, for which the campaign waits: its store is SQLite, in the process itself, so no commit is on its way elsewhere.
So the death of the last relay that had started when the connection was there bounds it.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posthouse.model.clock import TEST_CLOCK_ENV, SystemClock
from tests.faults.child import Child
from tests.faults.locks_client import LEASE_MS, SHARED, tree_above
from tests.faults.locks_linear import FOREVER
from tests.faults.locks_model import Op
from tests.faults.relay_process import RelayProcess

CLIENTS = 8
RESOURCES = ["db/main", "deploy"]
#: each name that a client asks for -> the lock that it is a name of
LOCK_OF = {name: name for name in (*RESOURCES, SHARED)} | {tree_above(name): name for name in RESOURCES if "/" in name}
#: refusals before anything was looked at: they say nothing about a lock
_NO_EFFECT = {"unsent", "token_invalid", "authentication_required", "relay_stopping", "store_busy", "locks_too_fast"}
_HOUR_NS = 3_600 * 10**9


@dataclass
class Campaign:
    """What is done, and what was recorded."""

    folder: Path
    chance: random.Random
    faults: int
    done: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    #: kind, begin and end of what was done to the relay: restart, backup, restore
    events: list[tuple[str, int, int]] = field(default_factory=list)
    #: when each relay that was killed was dead; the next one had not started by then
    deaths_ns: list[int] = field(default_factory=list)

    def run(self) -> dict[str, list[Op]]:
        """Fight and return the history of each resource."""
        clock_file = self.folder / "clock.json"
        self._step_clock(clock_file)
        relay = RelayProcess(self.folder)
        relay.environ[TEST_CLOCK_ENV] = str(clock_file)
        with relay:
            clients = [self._client(number, relay, clock_file) for number in range(CLIENTS)]
            try:
                for client in clients:
                    client.wait_lines(5, 60)
                for turn in range(self.faults):
                    time.sleep(self.chance.uniform(0.2, 0.6))
                    self._harm(turn, relay, clients, clock_file)
                time.sleep(2 * LEASE_MS / 1000)
            finally:
                for client in clients:
                    client.end_input()
            lines = [(client.wait(60), client.lines, client.errors) for client in clients]
        assert all(code == 0 for code, _, _ in lines), [errors for _, _, errors in lines]
        return self._history([told for _, told, _ in lines])

    def _client(self, number: int, relay: RelayProcess, clock_file: Path) -> Child:
        transport = "stream" if number % 2 else "http"
        seed = f"{self.chance.random()}"
        env = {TEST_CLOCK_ENV: str(clock_file)}
        return Child("tests.faults.locks_client", relay.url, transport, number, seed, *RESOURCES, SHARED, env=env)

    def _harm(self, turn: int, relay: RelayProcess, clients: list[Child], clock_file: Path) -> None:
        kind = ("stop", "kill", "step", "restore", "rollback")[turn % 5]
        self.done[kind] += 1
        if kind == "stop":
            victims = self.chance.sample(clients, 2)
            for victim in victims:
                victim.signal(signal.SIGSTOP)
            time.sleep(1.4 * LEASE_MS / 1000)
            for victim in victims:
                victim.signal(signal.SIGCONT)
        elif kind == "kill":
            called_ns = self._kill(relay)
            relay.start()
            self.events.append(("restart", called_ns, SystemClock().boot_ns()))
        elif kind == "step":
            self._step_clock(clock_file)
        else:
            self._lose_history(turn, relay, is_copied=kind == "rollback")

    def _kill(self, relay: RelayProcess) -> int:
        relay.kill()
        self.deaths_ns.append(SystemClock().boot_ns())
        return self.deaths_ns[-1]

    def _lose_history(self, turn: int, relay: RelayProcess, *, is_copied: bool) -> None:
        """Go back to a backup, by `relay restore` or by a copy of the file, while the clients go on."""
        store, backup = relay.data_dir / "relay.db", self.folder / f"{turn}.db"
        called_ns = SystemClock().boot_ns()
        relay.command("relay", "backup", str(backup))
        self.events.append(("backup", called_ns, SystemClock().boot_ns()))
        time.sleep(self.chance.uniform(0.3, 0.9))
        called_ns = self._kill(relay)
        if is_copied:
            for suffix in ("-wal", "-shm"):
                store.with_name(store.name + suffix).unlink(missing_ok=True)
            shutil.copy(backup, store)
            relay.command("relay", "restore", "--in-place")
        else:
            relay.command("relay", "restore", str(backup))
        relay.start()
        self.events.append(("restore", called_ns, SystemClock().boot_ns()))

    def _step_clock(self, path: Path) -> None:
        """Set the wall clock of every process an hour ahead, an hour back, or right."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps({"wall_offset_ns": self.chance.choice([-_HOUR_NS, 0, _HOUR_NS])}))
        temporary.replace(path)

    def _history(self, told: list[list[str]]) -> dict[str, list[Op]]:
        history: dict[str, list[Op]] = {resource: [] for resource in (*RESOURCES, SHARED)}
        for lines in told:
            first = json.loads(lines[0])
            client = f"{first['node']}#{first['session']}"
            asked: dict[int, dict[str, Any]] = {}
            answered: dict[int, dict[str, Any]] = {}
            for line in map(json.loads, lines[1:]):
                (answered if "answer" in line or "lost" in line else asked)[line["n"]] = line
            for number, call in asked.items():
                op = self._op(client, call, answered.get(number, {}))
                if op is not None:
                    history[LOCK_OF[op.resource]].append(op)
        for ops in history.values():
            ops[:] = _without_lone_request_ids(ops)
        for kind, called_ns, returned_ns in self.events:
            for ops in history.values():
                ops.append(Op("relay", kind, called_ns, returned_ns, {}))
        return history

    def _op(self, client: str, call: dict[str, Any], answered: dict[str, Any]) -> Op | None:
        answer = answered.get("answer")
        if answer is not None and answer.get("code") in _NO_EFFECT:
            return None
        if answer is None and call["op"] == "inspect":
            return None
        return Op(
            client,
            call["op"],
            call["at"],
            answered["at"] if answer is not None else self._over_by(answered.get("connected")),
            answer,
            call.get("lease_ms", 0),
            call.get("token", 0),
            call.get("request_id"),
            call["resource"],
            call.get("mode") == "shared",
        )

    def _over_by(self, connected_ns: int | None) -> int:
        """Return when the relay at the other end of a connection that was there at that moment was surely dead."""
        if connected_ns is None:
            return FOREVER
        return min((at for at in self.deaths_ns if at >= connected_ns), default=FOREVER)


def _without_lone_request_ids(ops: list[Op]) -> list[Op]:
    """Drop ids that one request has: they tell nothing, and the checker would keep apart what they name."""
    times = Counter((op.client, op.request_id) for op in ops)
    return [op if times[op.client, op.request_id] > 1 else replace(op, request_id=None) for op in ops]
