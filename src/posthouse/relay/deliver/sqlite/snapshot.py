"""What the journal's snapshot holds of deliveries: everything that may still change, and the counters."""

from __future__ import annotations

from typing import Any

import apsw

from posthouse.relay.deliver.sqlite.component import READ_SQL as SQL


def unfinished(db: apsw.Connection) -> dict[str, Any]:
    """Return open and parked deliveries and the counters of all mailboxes."""
    rows = [
        {"mesh": mesh, "recipient": node, "id": id_, "seq": seq, "state": state}
        for mesh, node, id_, seq, state in db.execute(SQL.unfinished)
    ]
    counters = [
        {"mesh": mesh, "node": node, "open": open_rows, "parked": parked, "confirmation_ids": ids}
        for mesh, node, open_rows, parked, ids in db.execute(SQL.counters)
    ]
    return {"rows": rows, "counters": counters}
