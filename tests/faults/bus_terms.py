"""What the processes of the bus campaign agree on: subject, limits, and the form of their ledgers."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from posthouse.model.reliability import Reliability

SUBJECT = "campaign.target"
LIMITS = msgspec.convert(
    {"rateLimit": {"maxPerWindow": 1_000_000}, "backpressure": {"maxMailboxSize": 100_000}}, Reliability
)


def append_line(fd: int, text: str) -> None:
    """Write a whole line in one call: a kill leaves it complete or absent."""
    os.write(fd, text.encode() + b"\n")


def lines_of(ledger: Path) -> list[tuple[int, str]]:
    """Number and message id of every line."""
    if not ledger.exists():
        return []
    return [(int(number), message_id) for number, message_id in map(str.split, ledger.read_text().splitlines())]


def numbers_in(ledger: Path) -> set[int]:
    return {number for number, _ in lines_of(ledger)}


def ids_in(ledger: Path) -> set[str]:
    return {message_id for _, message_id in lines_of(ledger)}
