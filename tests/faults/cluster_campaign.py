"""A campaign against the locks of three relays on one database: clients of all fight while relays die or stop.

The relays are real processes and share the machine's boot clock, so a new term is known by the record of its run. A
request without an answer, or with one that says that the leader was lost, may take effect later: at the leader that had
it, which ends such requests within the longest wait, or cannot commit them any more.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from posthouse.keys import NodeKey
from posthouse.model.clock import TEST_CLOCK_ENV, SystemClock
from tests.faults.locks_campaign import CLIENTS, Campaign
from tests.faults.locks_client import LEASE_MS
from tests.faults.locks_model import Op
from tests.faults.relay_process import RelayProcess
from tests.relay.cluster.relays import free_port, place_key

RELAYS = 3
STOP_S = 3.5  # longer than a leader may be silent
_SETTLED_NS = 5 * 10**9  # a request that is under way takes effect by then, or never
#: refusals before anything was decided
_UNDECIDED = {"leader_unknown", "relay_behind"}
#: the outcome is not known
_UNKNOWN = {"leader_lost", "store_unavailable"}
_TERMS = "SELECT (body::json ->> 'boot_ns')::bigint FROM journal WHERE type = 'lock.run_started' ORDER BY seq"


class ClusterCampaign(Campaign):
    """The campaign of one relay, with three."""

    def __init__(self, folder: Path, database: str, chance: Random, faults: int) -> None:
        super().__init__(folder, chance, faults)
        self._database = database
        key = NodeKey.generate()
        self.relays = [self._relay(number, key) for number in range(RELAYS)]

    def run(self) -> dict[str, list[Op]]:
        """Fight and return the history of each resource."""
        clock_file = self.folder / "clock.json"
        self._step_clock(clock_file)
        try:
            for relay in self.relays:
                relay.environ[TEST_CLOCK_ENV] = str(clock_file)
                relay.start()
            clients = [self._client(number, self.relays[number % RELAYS], clock_file) for number in range(CLIENTS)]
            try:
                for client in clients:
                    client.wait_lines(5, 60)
                for turn in range(self.faults):
                    time.sleep(self.chance.uniform(0.5, 1.0))
                    self._harm_relay(turn, clock_file)
                time.sleep(2 * LEASE_MS / 1000)
            finally:
                for client in clients:
                    client.end_input()
            lines = [(client.wait(60), client.lines, client.errors) for client in clients]
        finally:
            for relay in self.relays:
                relay.kill()
        assert all(code == 0 for code, _, _ in lines), [errors for _, _, errors in lines]
        with psycopg.connect(self._database) as connection:
            terms = [boot_ns for (boot_ns,) in connection.execute(_TERMS)]
        self.events = [("restart", boot_ns, boot_ns + 10**9) for boot_ns in terms[1:]]
        return self._history([told for _, told, _ in lines])

    def _relay(self, number: int, key: NodeKey) -> RelayProcess:
        folder, port = self.folder / str(number), free_port()
        place_key(folder / "relay", key)
        relay = RelayProcess(folder, "--store", self._database, "--advertise", f"http://127.0.0.1:{port}")
        relay.port = port
        return relay

    def _harm_relay(self, turn: int, clock_file: Path) -> None:
        kind = ("kill", "stop", "step")[turn % 3]
        self.done[kind] += 1
        victim = self.relays[turn % RELAYS]
        if kind == "kill":
            victim.kill()
            self.deaths_ns.append(SystemClock().boot_ns())
            time.sleep(self.chance.uniform(0, STOP_S))
            victim.start()
        elif kind == "stop":
            victim.signal(signal.SIGSTOP)
            time.sleep(STOP_S)
            victim.signal(signal.SIGCONT)
        else:
            self._step_clock(clock_file)

    def _op(self, client: str, call: dict[str, Any], answered: dict[str, Any]) -> Op | None:
        code = (answered.get("answer") or {}).get("code")
        if code in _UNDECIDED:
            return None
        if code in _UNKNOWN:
            answered = {"lost": True, "at": answered["at"]}
        op = super()._op(client, call, answered)
        if op is None or op.answer is not None:
            return op
        settled_ns = answered.get("at", SystemClock().boot_ns()) + _SETTLED_NS
        return Op(
            op.client, op.kind, op.called_ns, settled_ns, None, op.lease_ms, op.token, op.request_id, op.resource,
            op.is_shared,
        )  # fmt: skip
