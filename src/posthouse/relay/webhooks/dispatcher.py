"""The dispatcher of webhooks: one task per active webhook sends committed events, in commit order.

At least once: the cursor of a webhook moves past an event in a transaction after its receiver has answered, so after a
crash the last event may be sent again under the same id. A receiver that fails holds up its own webhook only. What a
webhook may send is what its creator may read at that moment. Writes compare the cursor first, so they never undo a
replay that was requested in between.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import structlog

from posthouse.keys import NodeKey
from posthouse.model import webhook
from posthouse.model.clock import Clock
from posthouse.model.errors import PosthouseError
from posthouse.model.limits import SECOND_NS
from posthouse.relay.accept.mesh_registry import Meshes, Right
from posthouse.relay.metrics import MetricsObserver, NullObserver
from posthouse.relay.store.protocol import RelayStore, Unit
from posthouse.relay.store.shared_store import Charge
from posthouse.relay.webhooks.payloads import Item, notice_of, ntfy_request, slack_request
from posthouse.relay.webhooks.selecting import Selection, select_items
from posthouse.relay.webhooks.sending import Attempt, WebhookSender
from posthouse.relay.wire.accept_results import Committed, Listen, OccasionalListener
from posthouse.relay.wire.webhook_rows import ParkedEvent, WebhookRow

log = structlog.get_logger(__name__)
POLL_S = 1.0  # between polls for journal records, which no commit announces, and for webhooks that other relays change
_GATHER_S = 0.02  # commits of this time are read together: a busy relay is not read for each of them
_SENT_AT_ONCE = 32  # requests of all webhooks together
_UNMATCHED_STEP = 1_000  # records without a match after which the cursor is written
_PARKED_AT_ONCE = 100
#: change of a row that is still as it was read
Change = Callable[[WebhookRow], WebhookRow]


class _Looked(NamedTuple):
    cursor: int
    through_seq: int


class Dispatcher:
    """Serves the webhooks of a relay."""

    def __init__(
        self, store: RelayStore, meshes: Meshes, sender: WebhookSender, clock: Clock, charge: Charge, listen: Listen
    ) -> None:
        self._store = store
        self._listening = OccasionalListener(listen, self._wake_active)
        self._charge = charge
        self._meshes = meshes
        self._sender = sender
        self._clock = clock
        self.observer: MetricsObserver = NullObserver()
        self._chance = random.SystemRandom()
        self._slots = asyncio.Semaphore(_SENT_AT_ONCE)
        self._wakeup = asyncio.Event()
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._wakers: dict[str, asyncio.Event] = {}
        #: how far webhooks have read without a match, beyond their cursors
        self._looked: dict[str, _Looked] = {}
        #: since when an event waits to be sent, by webhook
        self._waiting_since_ns: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="webhooks")

    async def close(self) -> None:
        """Stop; an event that is still unanswered is sent again after the next start."""
        tasks = [*self._serving.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sender.close()

    def wake(self) -> None:
        """Check for webhooks that have changed."""
        self._wakeup.set()
        self._wake_active()

    def _wake_active(self, _batch: Sequence[Committed] = ()) -> None:
        """Let the active webhooks read events to send."""
        for waker in self._wakers.values():
            waker.set()

    @property
    def lag_s(self) -> float:
        """The longest time for which an event has waited for the receiver of an active webhook."""
        since_ns = min(self._waiting_since_ns.values(), default=None)
        return 0.0 if since_ns is None else max(0.0, (self._clock.wall_ns() - since_ns) / SECOND_NS)

    @property
    def serving(self) -> int:
        """The number of active webhooks."""
        return len(self._serving)

    async def _run(self) -> None:
        while True:
            self._wakeup.clear()
            pause_s = None if self._store.shared is None else POLL_S  # alone, this relay makes all changes itself
            try:
                rows = await self._store.webhooks.all() if self._charge.is_here else []
                self._start_tasks({row.webhook_id for row in rows if row.state is webhook.WebhookState.ACTIVE})
            except PosthouseError as failure:  # such as a store that is restarting
                log.warning("webhooks_not_read", code=failure.code, reason=str(failure))
                pause_s = POLL_S
            await _wait(self._wakeup, pause_s)

    def _start_tasks(self, active: set[str]) -> None:
        self._listening.set(is_needed=bool(active))
        for webhook_id in active - self._serving.keys():
            self._wakers[webhook_id] = asyncio.Event()
            task = asyncio.get_running_loop().create_task(self._serve(webhook_id), name=f"webhook {webhook_id}")
            self._serving[webhook_id] = task
            task.add_done_callback(partial(self._forget, webhook_id))
        for webhook_id in self._serving.keys() - active:
            self._serving[webhook_id].cancel()

    def _forget(self, webhook_id: str, _task: asyncio.Task[None]) -> None:
        for kept in (self._serving, self._wakers, self._looked, self._waiting_since_ns):
            kept.pop(webhook_id, None)
        self._wakeup.set()  # it may have become active again while its task ended

    async def _serve(self, webhook_id: str) -> None:
        """Send the events of one webhook, until it is removed, suspended or ended."""
        waker = self._wakers[webhook_id]
        while True:
            waker.clear()
            try:
                row = await self._store.webhooks.find(webhook_id)
                if row is None or row.state is not webhook.WebhookState.ACTIVE:
                    return
                pause_s = (row.next_attempt_at_ns - self._clock.wall_ns()) / SECOND_NS
                if pause_s > 0:
                    await _wait(waker, min(pause_s, POLL_S))
                    continue
                if not await self._advance(row):
                    await _wait(waker, POLL_S)
                    await asyncio.sleep(_GATHER_S)
            except PosthouseError as failure:
                log.warning("webhook_waits", webhook=webhook_id, code=failure.code, reason=str(failure))
                await asyncio.sleep(POLL_S)

    async def _advance(self, row: WebhookRow) -> bool:
        """Send the next events of a webhook; return False once there are none."""
        looked = self._looked.get(row.webhook_id)
        after = looked.through_seq if looked is not None and looked.cursor == row.cursor else row.cursor
        if (reason := self._missing_right(row)) is not None:
            await self._suspend(row, reason)
            return True
        if row.has_due:
            return await self._send_due(row)
        found = await select_items(self._store, row, after)
        for item in found.items:
            if self._missing_right(row) is not None:
                return True
            self._waiting_since_ns.setdefault(row.webhook_id, self._clock.wall_ns())
            attempt = await self._send(row, item)
            self.observer.count("posthouse_relay_webhook_sends_total", attempt.outcome.value)
            changed = await self._note(row, item, attempt)
            if attempt.outcome is not webhook.Outcome.SENT or changed is None:
                return True
            self._waiting_since_ns.pop(row.webhook_id, None)
            row = changed
        await self._look_on(row, found)
        return not found.is_end

    async def _send_due(self, row: WebhookRow) -> bool:
        """Send the parked events of a webhook that are to be sent again."""
        for parked in await self._store.webhooks.parked(row.webhook_id, _PARKED_AT_ONCE):
            if not parked.is_due:
                continue
            found = await select_items(self._store, row, parked.seq - 1)
            item = next((each for each in found.items if each.seq == parked.seq), None)
            attempt = (
                Attempt(webhook.Outcome.SENT) if item is None else await self._send(row, item)
            )  # its content is gone
            if attempt.outcome in (webhook.Outcome.RETRY, webhook.Outcome.GONE):
                await self._note(row, Item(row.cursor, row.mesh), attempt)
                return True
            settle = partial(_settle_parked, parked=parked, attempt=attempt)
            await self._store.submit(self._charge.fenced(settle))
        await self._change(row, lambda now: msgspec.structs.replace(now, has_due=False))
        return True

    def _missing_right(self, row: WebhookRow) -> str | None:
        """Return why the creator of a webhook may not read what it sends."""
        right = Right.ADMINISTER if msgspec.json.decode(row.record_types) else Right.READ
        if row.mesh in self._meshes and right in self._meshes.rights(row.creator, row.mesh):
            return None
        return f"its creator has no right to {right.value} in the mesh {row.mesh}"

    async def _look_on(self, row: WebhookRow, found: Selection) -> None:
        """Note that nothing up to a seq is left to send; the cursor is written only from time to time."""
        self._looked[row.webhook_id] = _Looked(row.cursor, found.through_seq)
        if found.through_seq - row.cursor >= _UNMATCHED_STEP:
            await self._change(row, lambda now: msgspec.structs.replace(now, cursor=found.through_seq))

    async def _send(self, row: WebhookRow, item: Item) -> Attempt:
        async with self._slots:
            if row.preset is webhook.Preset.JSON:
                body = item.to_json()
                headers = {"Content-Type": "application/json", **self._signature(row, item, body).headers()}
                return await self._sender.post(row.url, body, headers)
            notice = notice_of(item, self._name_in(row.mesh))
            if row.preset is webhook.Preset.EMAIL:
                return await self._sender.mail(row.url.removeprefix("mailto:"), notice.title, notice.text)
            body, headers = {webhook.Preset.SLACK: slack_request, webhook.Preset.NTFY: ntfy_request}[row.preset](notice)
            return await self._sender.post(row.url, body, headers)

    def _signature(self, row: WebhookRow, item: Item, body: bytes) -> webhook.Signature:
        message_id, timestamp = item.message_id(self._store.epoch), self._clock.wall_ns() // SECOND_NS
        if row.signing is webhook.Signing.HMAC:
            return webhook.Signature(message_id, timestamp, webhook.sign_hmac(row.secret, message_id, timestamp, body))
        return webhook.Signature(
            message_id, timestamp, sign_ed25519(row.secret, webhook.signed_bytes(message_id, timestamp, body))
        )

    def _name_in(self, mesh: str) -> Callable[[str], str | None]:
        members = self._meshes.find(mesh).members
        return lambda node: members[node].name if node in members else None

    async def _note(self, row: WebhookRow, item: Item, attempt: Attempt) -> WebhookRow | None:
        """Write the outcome of an attempt; return the row, None if it was changed in the meantime."""
        now_ns, outcome = self._clock.wall_ns(), attempt.outcome
        if outcome is webhook.Outcome.SENT:
            return await self._change(row, lambda now: _sent(now, item.seq, now_ns))
        if outcome is webhook.Outcome.GONE:
            return await self._change(row, _ended, "webhook.ended", {"reason": attempt.text})
        failed = msgspec.structs.replace(
            row,
            attempts=row.attempts + 1,
            next_attempt_at_ns=now_ns + self._delay_ns(row.attempts + 1, attempt.retry_after_s),
            failing_since_ns=row.failing_since_ns or now_ns,
            last_error=attempt.text[:500],
        )
        if outcome is webhook.Outcome.REFUSED and failed.attempts >= webhook.REFUSED_TRIES:
            parked = ParkedEvent(row.webhook_id, item.seq, attempt.text[:500], now_ns)
            return await self._park(row, parked)
        if now_ns - (failed.failing_since_ns or now_ns) >= webhook.SUSPEND_AFTER_NS:
            return await self._suspend(failed, attempt.text)
        return await self._change(row, lambda _now: failed)

    def _delay_ns(self, attempts: int, retry_after_s: float) -> int:
        return round(max(webhook.backoff_s(attempts, self._chance.random()), retry_after_s) * SECOND_NS)

    async def _suspend(self, row: WebhookRow, reason: str) -> WebhookRow | None:
        log.warning("webhook_suspended", webhook=row.webhook_id, reason=reason)
        suspended = msgspec.structs.replace(row, state=webhook.WebhookState.SUSPENDED, last_error=reason[:500])
        return await self._change(row, lambda _now: suspended, "webhook.suspended", {"reason": reason[:500]})

    async def _park(self, row: WebhookRow, parked: ParkedEvent) -> WebhookRow | None:
        log.warning("webhook_event_parked", webhook=row.webhook_id, seq=parked.seq, reason=parked.reason)
        self._waiting_since_ns.pop(row.webhook_id, None)

        def passed(now: WebhookRow) -> WebhookRow:
            return msgspec.structs.replace(
                now,
                cursor=parked.seq,
                attempts=0,
                next_attempt_at_ns=0,
                failing_since_ns=None,
                last_error=parked.reason,
            )

        body = {"seq": parked.seq, "reason": parked.reason}
        return await self._change(row, passed, "webhook.parked", body, parked)

    async def _change(
        self,
        row: WebhookRow,
        change: Change,
        record: str | None = None,
        body: Mapping[str, Any] | None = None,
        parked: ParkedEvent | None = None,
    ) -> WebhookRow | None:
        """Write a change of a webhook, unless its cursor has moved or it is gone; return the new row."""

        def write(unit: Unit) -> WebhookRow | None:
            now = unit.webhooks.find(row.webhook_id)
            if now is None or (now.cursor, now.state) != (row.cursor, webhook.WebhookState.ACTIVE):
                return None
            changed = change(now)
            unit.webhooks.save(changed)
            if parked is not None:
                unit.webhooks.park(parked)
            if record is not None:
                unit.append(record, mesh=row.mesh, actor=row.creator, ref=row.webhook_id, body=body)
            return changed

        return await self._store.submit(self._charge.fenced(write))


def sign_ed25519(seed: bytes, signed: bytes) -> str:
    """Return the signature of scheme v1a."""
    return "v1a," + base64.b64encode(NodeKey(seed).sign(signed)).decode()


def _sent(row: WebhookRow, seq: int, now_ns: int) -> WebhookRow:
    return msgspec.structs.replace(
        row,
        cursor=seq,
        attempts=0,
        next_attempt_at_ns=0,
        failing_since_ns=None,
        last_error=None,
        last_sent_at_ns=now_ns,
    )


def _settle_parked(unit: Unit, parked: ParkedEvent, attempt: Attempt) -> None:
    """Forget a parked event that was sent, or keep it with the reason of the new refusal."""
    if attempt.outcome is webhook.Outcome.SENT:
        unit.webhooks.unpark(parked.webhook_id, parked.seq)
    else:
        unit.webhooks.park(msgspec.structs.replace(parked, is_due=False, reason=attempt.text[:500]))


def _ended(row: WebhookRow) -> WebhookRow:
    return msgspec.structs.replace(row, state=webhook.WebhookState.ENDED, last_error="the receiver answered 410")


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
