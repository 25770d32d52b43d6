"""The real programs that signatures and sealing have to agree with; a test that lacks one says so."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from posthouse.files import write_atomic
from posthouse.keys import NodeKey
from posthouse.keys.ssh import write_private_key, write_public_line

needs_ssh_keygen = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed: agreement with OpenSSH is not tested"
)
needs_age = pytest.mark.skipif(
    shutil.which("age") is None, reason="age is not installed: agreement with the age program is not tested"
)


def run(*command: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end."""
    return subprocess.run(command, input=stdin, capture_output=True, timeout=30, check=False)


def output(*command: str | Path, stdin: bytes = b"") -> bytes:
    """Run a program that has to succeed and return what it printed."""
    done = run(*command, stdin=stdin)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def store_openssh(key: NodeKey, path: Path) -> Path:
    """Write the key where OpenSSH and age find it, with its public half beside it."""
    write_atomic(path, write_private_key(key).encode())
    write_atomic(path.with_name(path.name + ".pub"), f"{write_public_line(key.node)}\n".encode())
    return path
