"""A relay that kills itself between the commit of the first message and its answer; arguments as `posthouse`."""

from __future__ import annotations

import os
import signal

from posthouse.cli.main import main
from posthouse.relay.accept.path import AcceptPath
from posthouse.relay.accept.submission import Submission
from posthouse.relay.wire.accept_results import Answer, MessageAccepted

_finish = AcceptPath._finish


def _die(path: AcceptPath, group: list[Submission], answers: list[Answer]) -> None:
    if any(isinstance(answer, MessageAccepted) for answer in answers):
        os.kill(os.getpid(), signal.SIGKILL)
    _finish(path, group, answers)


if __name__ == "__main__":
    AcceptPath._finish = _die  # type: ignore[method-assign, assignment]
    main()
