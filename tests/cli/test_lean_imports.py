"""What a relay and a daemon hold in memory while they idle: no library that only other commands or rare cases need."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.answering import environment

#: used by other commands, for rare requests or for mistakes
UNUSED = {"difflib", "jinja2", "plistlib", "pyarrow", "pygments", "pyrage", "rich", "smtplib", "tomlkit", "zoneinfo"}
#: of aiohttp.web, structlog, the metrics of others and importlib.resources
UNUSED |= {"argparse", "colorama", "greenlet", "prometheus_client", "zipfile"}
SERVE = (
    "import sys\n"
    "from posthouse.cli.main import main\n"
    "try: main(sys.argv[1:])\n"
    "finally:\n"
    "    import os, aiohttp.connector\n"
    "    held = aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()['x509_ca']\n"
    "    said = {'modules': list(sys.modules), 'authorities': held, 'cert_file': os.environ.get('SSL_CERT_FILE')}\n"
    "    import json; sys.stderr.write('\\n' + json.dumps(said))\n"
)
RELAY = ("relay", "up", "--listen", "127.0.0.1:0", "--json")
DAEMON = ("daemon", "up", "--foreground", "--relay", "http://127.0.0.1:9", "--json")


@pytest.mark.parametrize("words", [RELAY, DAEMON])
def test_idle_server_holds_no_unused_library_and_no_certificate_authorities(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    env = environment(tmp_path, SSL_CERT_FILE="/etc/ssl/certs/ca-certificates.crt")
    command = [sys.executable, "-c", SERVE, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True) as server:
        assert server.stdout is not None
        server.stdout.readline()  # it is ready
        server.send_signal(signal.SIGTERM)
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0, errors
    said = json.loads(errors.splitlines()[-1])
    assert {name.partition(".")[0] for name in said["modules"]} & UNUSED == set()
    assert said["authorities"] == 0
    assert said["cert_file"] == env["SSL_CERT_FILE"]
