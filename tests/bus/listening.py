"""Handlers that remember, fail, hold or answer, for tests in one process."""

from __future__ import annotations

import asyncio
from typing import Any

from posthouse.model.envelope import Envelope
from tests.bus.waiting import DEADLINE_S, eventually


class Recorder:
    """A handler that remembers what it got, and can fail or hold on request."""

    def __init__(self, *, fails: bool = False, holds: bool = False) -> None:
        self.envelopes: list[Envelope] = []
        self.finished = 0
        self.fails = fails
        self.release = asyncio.Event()
        if not holds:
            self.release.set()

    async def __call__(self, envelope: Envelope) -> None:
        self.envelopes.append(envelope)
        await self.release.wait()
        if self.fails:
            raise RuntimeError("this handler fails")
        self.finished += 1

    @property
    def payloads(self) -> list[Any]:
        return [envelope.payload for envelope in self.envelopes]

    @property
    def ids(self) -> list[str]:
        return [envelope.id for envelope in self.envelopes]

    async def wait(self, count: int, within_s: float = DEADLINE_S) -> list[Any]:
        """Wait until it was called that often and return the payloads."""
        return await eventually(lambda: self.payloads, lambda seen: len(seen) >= count, within_s)
