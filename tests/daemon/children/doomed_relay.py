"""A relay that kills itself between the commit of the first message and its answer; arguments as `posthouse`."""

from __future__ import annotations

import os
import signal

from posthouse.cli.main import main
from posthouse.relay.accept.job import Parcel
from posthouse.relay.accept.path import AcceptPath
from posthouse.relay.answers import Answer
from posthouse.relay.deliver.answers import MessageAccepted

_finish = AcceptPath._finish


def _die(path: AcceptPath, group: list[Parcel], answers: list[Answer]) -> None:
    if any(isinstance(answer, MessageAccepted) for answer in answers):
        os.kill(os.getpid(), signal.SIGKILL)
    _finish(path, group, answers)


if __name__ == "__main__":
    AcceptPath._finish = _die  # type: ignore[method-assign, assignment]
    main()
