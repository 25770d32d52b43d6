"""An S3 server of this test run: moto as a process of its own, on a port that is known before it starts.

Spark's workers take their environment from the JVM, which starts before the first test that needs S3.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOST = "127.0.0.1"
SECRET = "never-show-this-secret"
_START_S, _LOOK_S = 60.0, 0.05


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def s3_environment(port: int) -> dict[str, str]:
    """Return the variables that lead a process to the server."""
    return {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{HOST}:{port}",
    }


@contextmanager
def s3_server(port: int, log: Path) -> Iterator[None]:
    """Run the server."""
    command = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)
    try:
        _wait(port, process, log)
        yield
    finally:
        process.terminate()
        process.wait(30)


def make_bucket(port: int, name: str) -> None:
    """Create a bucket."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("PUT", f"/{name}")
    assert connection.getresponse().status == 200
    connection.close()


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(round(_START_S / _LOOK_S)):
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(_LOOK_S)
    raise AssertionError(f"moto did not start: {log.read_text()}")
