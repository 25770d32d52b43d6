"""One of the two agents: a writer that sends drafts, or an editor that comments on every draft.

Each is a process of its own with the bus open. The writer asks the editor; the editor answers; a third question
makes the editor ask back, which the budget ends: two agents that answer each other for ever do not exist here.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from posthouse import Bus, Envelope

DRAFTS = ("The horse arrives at dawn.", "The horse arrives at dawn, tired.", "Dawn. The horse.")


async def write(bus: Bus) -> None:
    """Send the drafts one after the other, each with the editor's comment on the previous one."""
    opinion = "none yet"
    for draft in DRAFTS:
        payload = {"content": draft, "performative": "propose", "platformData": {"formerOpinion": opinion}}
        answer = await bus.request("agents.editor", payload, from_="agents.writer", timeout_s=10)
        opinion = answer.payload["content"]


async def edit(bus: Bus) -> None:
    """Comment on every draft and notify the archive, until a message says stop."""
    stopped = asyncio.Event()

    async def judge(draft: Envelope) -> None:
        if draft.payload == "stop":
            stopped.set()
            return
        words = len(draft.payload["content"].split())
        verdict = "accept" if words < 6 else "reject"
        opinion = {"content": f"{words} words: {verdict}", "performative": verdict}
        if draft.reply_to is not None:
            await bus.publish(draft.reply_to, opinion, from_="agents.editor")
        await bus.publish("agents.archive", draft.payload, from_="agents.editor")
        await bus.publish("agents.editor", "what did I say?", from_="agents.editor")  # refused: a cycle

    await bus.register_endpoint("agents.editor", owner="editor")
    await bus.subscribe("agents.editor", judge)
    await stopped.wait()


async def main(role: str, folder: Path) -> None:
    async with Bus(folder) as bus:
        await {"writer": write, "editor": edit}[role](bus)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
