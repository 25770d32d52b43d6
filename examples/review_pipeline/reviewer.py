"""The reviewer: give each change that arrives to a program, and answer with what it prints.

The program is `claude -p` or any other that reads a prompt from stdin; REVIEWER names it. A program that fails does not
leave the author waiting: the answer says that the review failed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from posthouse import DaemonClient

PATIENCE_S = 120
STUB = shlex.join([sys.executable, str(Path(__file__).with_name("stub.py"))])
PROMPT = "Review this change. The first line of your answer is APPROVE or REJECT, with the reason.\n\n"


def main(daemons: str, count: int) -> None:
    program = shlex.split(os.environ.get("REVIEWER", STUB))
    reviewed = 0
    with DaemonClient(daemons, agent="reviewer") as daemon:
        while reviewed < count:
            for change in daemon.wait(PATIENCE_S):
                prompt = PROMPT + (change.body or "")
                done = subprocess.run(program, input=prompt, capture_output=True, text=True, timeout=PATIENCE_S)
                answer = done.stdout if done.returncode == 0 else done.stderr or "the reviewer failed"
                outcome = "final" if done.returncode == 0 else "failed"
                daemon.send(
                    f"{change.from_agent}@{change.sender}", answer, reply_to_id=change.message_id, answer=outcome
                )
                daemon.seen([change.id])
                reviewed += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
