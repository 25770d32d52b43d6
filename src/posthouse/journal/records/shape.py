"""What a declaration of a record type says.

A record is a fact: when, what, in which mesh, by whom (`actor`), about what (`ref`), with a small JSON body.
Readers rely on these shapes for ever. If you add or change a type: 1. declare it in the file of its area (a change
raises `version` and keeps old fields readable), 2. `make docs`, 3. the reader in the pipeline, 4. a test that
writes it.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RecordType:
    """The shape of one type of record."""

    name: str
    #: What `ref` names.
    ref: str
    #: Body fields and what they mean; all may be absent unless the text says always.
    body: dict[str, str] = field(default_factory=dict)
    version: int = 1
