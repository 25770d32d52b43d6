"""The program that `lock run` starts instead of the command: it ties itself to its parent, then becomes the command.

It asks the kernel to kill it when its parent dies, checks that the parent has not died before that, and executes the
command; the request outlives exec. Only Linux offers this: elsewhere the command outlives a `lock run` that was killed.
It runs as a separate file in a bare interpreter, because Python code between fork and exec can deadlock in a process
with threads; so it imports no other module of posthouse. If the command cannot be executed, it writes the errno to its
pipe.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, pipe: int, command: list[str]) -> None:
    """Become the command; `pipe` stays open until then."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the request reached the kernel
            os._exit(128 + signal.SIGKILL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # this interpreter ignores them, and a command would inherit that
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(pipe, False)
    try:
        os.execvp(command[0], command)
    except OSError as failure:
        os.write(pipe, str(failure.errno).encode())
        os._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
