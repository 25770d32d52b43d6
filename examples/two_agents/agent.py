"""One of the two agents: a writer that sends drafts, or an editor that comments on every draft.

Each is a process of its own with the bus open. The writer proposes a draft, the editor answers, the writer proposes
the next one, until the editor accepts. An answer costs no hop, so a conversation under the default limits has room for
twenty questions; two agents that answer each other without end are stopped by the same limits.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from posthouse import Bus, Envelope

DRAFTS = ("The horse arrives at dawn, tired.", "The horse arrives at dawn.", "Dawn. The horse.")


async def write(bus: Bus) -> None:
    """Propose one draft after another until the editor accepts."""
    accepted = asyncio.Event()
    drafts = iter(DRAFTS)

    async def propose() -> None:
        draft = {"content": next(drafts), "performative": "propose"}
        await bus.publish("agents.editor", draft, from_="agents.writer")

    async def on_comment(comment: Envelope) -> None:
        if comment.payload["performative"] == "accept":
            accepted.set()
        else:
            await propose()

    await bus.subscribe("agents.writer", on_comment)
    await propose()
    await accepted.wait()


async def edit(bus: Bus) -> None:
    """Comment on every draft and archive the one that is short enough; then the work is done."""
    archived = asyncio.Event()

    async def on_draft(draft: Envelope) -> None:
        words = len(draft.payload["content"].split())
        verdict = "accept" if words < 4 else "reject"
        comment = {"content": f"{words} words: {verdict}", "performative": verdict}
        await bus.publish(draft.from_, comment, from_="agents.editor")
        if verdict == "accept":
            await bus.publish("agents.archive", draft.payload, from_="agents.editor")
            archived.set()

    await bus.subscribe("agents.editor", on_draft)
    await archived.wait()


async def main(role: str, folder: Path) -> None:
    async with Bus(folder) as bus:
        await bus.register_endpoint(f"agents.{role}", owner=role)
        await {"writer": write, "editor": edit}[role](bus)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
