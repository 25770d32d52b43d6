"""A command that a shell starts and the server of forked programs runs: it takes the signals and ends as that does.

Runs without the package and without site-packages: `python -I -S forked_command.py SOCKET MODULE ARGS`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

_FORWARDED = (signal.SIGINT, signal.SIGTERM)


def main() -> None:
    address, *words = sys.argv[1:]
    ours, theirs = socket.socketpair()
    request = {"words": words, "env": dict(os.environ), "cwd": os.getcwd()}  # noqa: PTH109 - pathlib takes longer
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2, theirs.fileno()])
    theirs.close()
    pid = int(ours.recv(100))
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: os.kill(pid, received))
    code = int(ours.recv(100))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
