"""Reading Pinch envelopes on SQLite, beside the writer; what comes is ready for the wire."""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from posthouse.relay.deliver.rows import ConfirmationPage, Page
from posthouse.relay.pinch.sqlite.component import SQL
from posthouse.relay.pinch.told import decode_told
from posthouse.relay.pinch.wire import is_confirmed_by_reader
from posthouse.relay.stream.frame import binary_frame
from posthouse.sqlite.read_pool import ReadPool

_encode = msgspec.json.Encoder().encode
_NO_PAGE = Page([], [], b"", "{}")


class SqlitePinchReads:
    """Implements posthouse.relay.deliver.interface.MailboxReads for Pinch addresses."""

    def __init__(self, pool: ReadPool) -> None:
        self._pool = pool

    async def page(self, mesh: str, node: str, after: int, opened_since_ns: int, now_ns: int, limit: int) -> Page:
        def read(db: apsw.Connection) -> Page:
            bindings = (_mailbox(db, mesh, node), after, opened_since_ns, limit)
            rows: list[Any] = db.execute(SQL.page, bindings).fetchall()
            return _page(rows) if rows else _NO_PAGE

        return await self._pool.run(read)

    async def confirmations(self, mesh: str, node: str, after_seq: int, limit: int) -> ConfirmationPage:
        def read(db: apsw.Connection) -> ConfirmationPage:
            bindings = (_mailbox(db, mesh, node), after_seq, limit)
            rows: list[Any] = db.execute(SQL.confirmation_page, bindings).fetchall()
            frames = [binary_frame(each.envelope) for _seq, items in rows for each in decode_told(items)]
            return ConfirmationPage(len(frames), rows[-1][0] if rows else after_seq, b"".join(frames))

        return await self._pool.run(read)


def _page(rows: list[Any]) -> Page:
    positions, seqs, ids, was_stored, attempts, types, envelopes = zip(*rows, strict=True)
    body = {"ids": ids, "was_stored": [bool(stored) for stored in was_stored], "attempts": attempts}
    leaving = [seq for seq, type_ in zip(seqs, types, strict=True) if not is_confirmed_by_reader(type_)]
    text = b"".join(map(binary_frame, envelopes))
    return Page(list(positions), list(seqs), text, _encode(body).decode(), leaving)


def _mailbox(db: apsw.Connection, mesh: str, node: str) -> int | None:
    mailbox: int | None = db.execute(SQL.mailbox_of, (mesh, node)).get
    return mailbox
