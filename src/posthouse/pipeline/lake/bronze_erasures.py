"""bronze_erasures: one record for each block of bronze rows that lost content, signed by the node that erased it.

A record keeps the digests of the erased rows, so the other rows of the block stay provable, and names the leaf of the
block before and after. With version 2 both are equal, because the leaf hashes digests; a block of version 1 is sealed
again with version 2. A run writes the record first and then rewrites the rows: a run that dies in between leaves rows
that still have their content and the digest that the record states. The signature covers the stored text with a label
in front, so no other signature of the node can be taken for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from posthouse.journal.records import without_content
from posthouse.keys import NodeKey, sign_native, verify
from posthouse.model.errors import PosthouseError
from posthouse.pipeline.lake.data_file import write_rows
from posthouse.pipeline.lake.delta import Commit, Delta, check_files
from posthouse.pipeline.lake.merkle import VERSION, Seal
from posthouse.pipeline.lake.storage import Storage
from posthouse.pipeline.tables.bronze import ERASURES_TABLE, erasures_schema

if TYPE_CHECKING:
    import pyarrow as pa

_LABEL = b"posthouse-lake-erasure-v1\n"
_NUMBER = "posthouse:erasure_number"
_PURGED = "posthouse:purged_number"


class Erasure(msgspec.Struct, frozen=True):
    """The erasures in one block of rows."""

    feed: str
    epoch: str
    #: The block holds the rows (after, to].
    after: int
    to: int
    old_leaf: str
    #: A leaf of version 2.
    new_leaf: str
    seqs: tuple[int, ...]
    #: For each seq, the digest of the row with its content, in hex; None: the lake never had the content.
    digests: tuple[str | None, ...]
    #: For each seq, the digest of the event as it was served, in hex; None for records, and if it is unknown.
    contents: tuple[str | None, ...]
    reason: str
    at_ns: int


class SignedErasure(NamedTuple):
    """A stored record: its number in the order of erasures, and the node that signed it."""

    number: int
    erasure: Erasure
    node: str
    text: str
    signature: str

    def is_authentic(self) -> bool:
        """Return True if the node signed the record."""
        try:
            verify(self.node, _LABEL + self.text.encode(), self.signature)
        except PosthouseError:
            return False
        return True


def sign_erasure(number: int, erasure: Erasure, key: NodeKey) -> SignedErasure:
    """Sign a record."""
    text = msgspec.json.encode(erasure)
    return SignedErasure(number, erasure, key.node, text.decode(), sign_native(key, _LABEL + text))


class ErasureTable:
    """The erasures of one lake."""

    def __init__(self, lake: Storage) -> None:
        self.delta = Delta(lake.child(ERASURES_TABLE))

    def create(self) -> None:
        """Create the table without a record, so that other tools find it."""
        if not self.delta.exists:
            self.delta.commit(Commit(), erasures_schema())

    def newest_number(self) -> int:
        """Return the number of the newest record; 0 if there is none."""
        return self.delta.app_version(_NUMBER) or 0

    def purged_number(self) -> int:
        """Return the number of the newest record for which the replaced files of every table have been deleted."""
        return self.delta.app_version(_PURGED) or 0

    def note_purged(self, number: int) -> None:
        """Store that all files with the content erased by the records up to a number have been deleted."""
        self.delta.commit(Commit(app_versions={_PURGED: number}, is_rewrite=True), erasures_schema())

    def read(self, after_number: int = 0) -> list[SignedErasure]:
        """Return the records after a number, in order."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        files = self.delta.files()
        check_files(self.delta, files)
        storage = self.delta.storage
        found: list[SignedErasure] = []
        for file in files:
            path, is_wanted = storage.full_path(file.path), pc.field("number") > after_number
            rows = pq.read_table(path, filters=is_wanted, partitioning=None, filesystem=storage.filesystem())
            found += [_stored(row) for row in rows.to_pylist()]
        return sorted(found, key=lambda each: each.number)

    def add(self, erasures: Sequence[Erasure], key: NodeKey, applied: Mapping[str, int]) -> None:
        """Store records, and in `applied` how far the requests of each store are done; there may be no record."""
        import pyarrow as pa

        first = self.newest_number() + 1
        signed = [sign_erasure(number, erasure, key) for number, erasure in enumerate(erasures, start=first)]
        files = write_rows(self.delta.storage, pa.Table.from_pylist([_row(each) for each in signed], erasures_schema()))
        versions = {_NUMBER: first + len(signed) - 1, **applied}
        self.delta.commit(Commit(files, app_versions=versions), erasures_schema())


def _row(signed: SignedErasure) -> dict[str, Any]:
    erasure = signed.erasure
    return {
        "number": signed.number,
        "feed": erasure.feed,
        "epoch": erasure.epoch,
        "after": erasure.after,
        "to": erasure.to,
        "rows": len(erasure.seqs),
        "record": signed.text,
        "node": signed.node,
        "signature": signed.signature,
    }


def _stored(row: Mapping[str, Any]) -> SignedErasure:
    erasure = msgspec.json.decode(row["record"], type=Erasure)
    return SignedErasure(row["number"], erasure, row["node"], row["record"], row["signature"])


@dataclass(frozen=True)
class ErasedRows:
    """The digests and leaves that erasures left for one feed; workers get them to compute leaves."""

    #: Epoch -> seq -> digest of the row with its content.
    digests: dict[str, dict[int, bytes]] = field(default_factory=dict)
    #: Epoch -> seq -> digest of the event as it was served.
    contents: dict[str, dict[int, bytes]] = field(default_factory=dict)
    #: Epoch and start of a block -> its leaf of version 2.
    leaves: dict[tuple[str, int], str] = field(default_factory=dict)

    def leaf(self, seal: Seal, after: int) -> str:
        """Return the valid leaf of a block of a seal: that of its newest erasure, or else the sealed one."""
        return self.leaves.get((seal.epoch, after)) or seal.leaf_after(after)

    def version(self, seal: Seal, after: int) -> int:
        """Return the version of the valid leaf of a block."""
        return VERSION if (seal.epoch, after) in self.leaves else seal.version

    def is_continued_by(self, erasure: Erasure, seal: Seal) -> bool:
        """Return True if a record starts from the valid leaf of its block, and replaces only a leaf of version 1."""
        after = erasure.after
        is_old = self.version(seal, after) == 1
        return erasure.old_leaf == self.leaf(seal, after) and (is_old or erasure.new_leaf == erasure.old_leaf)

    def kept(self, epoch: str, rows: pa.Table) -> dict[int, bytes]:
        """Return the digests of those rows of a block that no longer have content, by seq."""
        known = self.digests.get(epoch)
        if not known:
            return {}
        seqs = rows.column("seq").to_pylist()
        texts, emptied = rows.column(content_column(rows)).to_pylist(), emptied_texts(rows, known)
        found = zip(seqs, texts, emptied, strict=True)
        return {seq: known[seq] for seq, text, empty in found if seq in known and text == empty}

    def add(self, erasure: Erasure) -> None:
        """Add a record; its new leaf becomes the valid one of its block."""
        digests, contents = self.digests.setdefault(erasure.epoch, {}), self.contents.setdefault(erasure.epoch, {})
        for seq, digest, content in zip(erasure.seqs, erasure.digests, erasure.contents, strict=True):
            if digest is not None:
                digests[seq] = bytes.fromhex(digest)
            if content is not None:
                contents[seq] = bytes.fromhex(content)
        self.leaves[erasure.epoch, erasure.after] = erasure.new_leaf


def content_column(rows: pa.Table) -> str:
    """Return the name of the column of a bronze table that holds content."""
    return "event" if "event" in rows.column_names else "body"


def emptied_texts(rows: pa.Table, wanted: Container[int]) -> list[str | None]:
    """Return the content column of rows after erasing the rows with the wanted seqs."""
    seqs = rows.column("seq").to_pylist()
    if content_column(rows) == "event":
        events = rows.column("event").to_pylist()
        return [None if seq in wanted else event for seq, event in zip(seqs, events, strict=True)]
    types, bodies = rows.column("type").to_pylist(), rows.column("body").to_pylist()
    return [
        without_content(type_, body) if seq in wanted else body
        for seq, type_, body in zip(seqs, types, bodies, strict=True)
    ]


def erased_rows(records: Iterable[SignedErasure], feed: str) -> ErasedRows:
    """Return the erased rows of a feed according to these records, without checking the records."""
    found = ErasedRows()
    for each in records:
        if each.erasure.feed == feed:
            found.add(each.erasure)
    return found


def erased_seqs(records: Iterable[SignedErasure]) -> dict[str, set[int]]:
    """Return the seqs that records name, by epoch; a record of the journal and its event have the same seq."""
    found: dict[str, set[int]] = {}
    for each in records:
        found.setdefault(each.erasure.epoch, set()).update(each.erasure.seqs)
    return found


class RequestedErasure(msgspec.Struct):
    """The body of a content.erased record of a store."""

    seqs: list[int]
    digests: list[str | None]
    reason: str = ""


def digests_of_requests(records: pa.Table) -> dict[int, bytes]:
    """Return the digests of the records of a journal that its store has erased, by seq."""
    found: dict[int, bytes] = {}
    for type_, ref, body in zip(*(records.column(name).to_pylist() for name in ("type", "ref", "body")), strict=True):
        if type_ == "content.erased" and ref == "journal":
            found |= digests_of_request(body)
    return found


def digests_of_request(body: str) -> dict[int, bytes]:
    """Return the digests in the body of a content.erased or content.swept record, by seq."""
    erased = msgspec.json.decode(body, type=RequestedErasure)
    pairs = zip(erased.seqs, erased.digests, strict=True)
    return {seq: bytes.fromhex(digest) for seq, digest in pairs if digest is not None}
