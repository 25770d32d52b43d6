"""Every type of journal record, declared once.

A record is a fact: when, what, in which mesh, by whom, about what (`ref`), with a small JSON body. Readers rely on
these shapes for ever. If you add or change a type: 1. declare it here (a change raises `version` and keeps old
fields readable), 2. `make docs`, 3. the reader in the pipeline, 4. a test that writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class RecordType:
    """The shape of one type of record."""

    name: str
    #: What `ref` names.
    ref: str
    #: Body fields and what they mean; all may be absent unless the text says always.
    body: dict[str, str] = field(default_factory=dict)
    version: int = 1


_DECLARED = (
    RecordType(
        "journal.snapshot",
        "the last seq that pruning may remove below it",
        {
            "through_seq": "the prefix this snapshot stands for, always",
            "state": "what replay starts from, always",
        },
    ),
    RecordType("config.changed", "the name of what changed", {"changes": "the new values by setting, always"}),
    RecordType(
        "refused",
        "the error code",
        {
            "code": "the error code, always",
            "key": "whose requests were refused, always",
            "minute": "the Unix minute, always",
            "count": "how many in that minute, always",
        },
    ),
)

TYPES: MappingProxyType[str, RecordType] = MappingProxyType({t.name: t for t in _DECLARED})
