"""`posthouse webhook` against a relay process and a real receiver: what people type, and their mistakes."""

from __future__ import annotations

import http.server
import json
import queue
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine
from tests.faults.relay_process import RelayProcess

pytestmark = pytest.mark.xdist_group("cli-relay")
PATIENCE_S = 20


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with RelayProcess(tmp_path_factory.mktemp("relay"), "--webhook-networks", "127.0.0.0/8") as running:
        yield running


@pytest.fixture
def mesh(cli: CommandLine, relay: RelayProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A mesh of its own for each test, administered by the command line's node."""
    monkeypatch.setenv("POSTHOUSE_CLIENT_RELAY", relay.url)
    cli("keys", "new")
    name = tmp_path.parent.name[-8:] + "-" + tmp_path.name[-40:]
    assert cli("mesh", "create", name, "--name", "alice").exit == 0
    return name


class Receiver(http.server.ThreadingHTTPServer):
    """A receiver of webhooks that keeps requests and answers 204."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.put(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Write nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_events_go_to_the_url_and_the_library_verifies_them_with_the_secret_that_add_printed(
    cli: CommandLine, mesh: str, receiver: Receiver
) -> None:
    added = cli("webhook", "add", receiver.url, "--mesh", mesh, "--filter", '{"kinds": [7]}', "--json").value
    assert cli("event", "publish", "hello", "--kind", "7", "--mesh", mesh).exit == 0
    headers, body = receiver.requests.get(timeout=PATIENCE_S)
    payload = Webhook(added["verification_key"]).verify(body, headers)
    assert payload["data"]["event"]["content"] == "hello"
    webhook_id = added["webhook"]["id"]
    [listed] = cli("webhook", "ls", "--mesh", mesh, "--json").value["webhooks"]
    assert (listed["id"], listed["state"]) == (webhook_id, "active")
    shown = cli("webhook", "show", webhook_id, "--mesh", mesh)
    assert shown.exit == 0 and receiver.url in shown.out and added["verification_key"] not in shown.out
    assert cli("webhook", "replay", webhook_id, "--since", "1h", "--mesh", mesh).exit == 0
    assert receiver.requests.get(timeout=PATIENCE_S)[0]["webhook-id"] == headers["webhook-id"]
    assert cli("webhook", "retry", webhook_id, "--mesh", mesh, "--json").value["parked"] == []
    assert cli("webhook", "rm", webhook_id, "--mesh", mesh).out == f"removed {webhook_id}\n"
    assert cli("webhook", "ls", "--mesh", mesh, "--json").value == {"webhooks": [], "incoming": []}


def test_an_incoming_hook_turns_a_request_into_a_message(cli: CommandLine, mesh: str) -> None:
    assert cli("mesh", "topics", mesh, "--create", "builds").exit == 0
    added = cli("webhook", "in", "ci", "#builds", "--template", "{job}: {state}", "--mesh", mesh, "--json").value
    data = json.dumps({"job": "main", "state": "green"}).encode()
    request = urllib.request.Request(added["url"], data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        assert answer.status == 202
    [event] = cli("event", "query", "--mesh", mesh, "--kind", "1000", "--json").value["events"]
    assert event["content"] == "main: green"
    listed = cli("webhook", "ls", "--mesh", mesh).out
    assert "#builds" in listed and added["url"] not in listed
    assert cli("webhook", "rm", added["hook"]["id"], "--mesh", mesh).exit == 0


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        (("add", "https://10.0.0.1/hook"), "webhook_address_refused"),
        (("add", "not a url"), "webhook_url_invalid"),
        (("add", "https://127.0.0.1/", "--filter", "{"), "usage"),
        (("add", "https://127.0.0.1/", "--filter", "[]"), "usage"),
        (("add", "https://127.0.0.1/", "--secret", "weak"), "value_invalid"),
        (("add", "https://127.0.0.1/", "--record", "no.such"), "value_invalid"),
        (("add", "mailto:ops@example.org", "--preset", "email"), "webhook_email_unavailable"),
        (("show", "01J8Z3QW4T5V6X7Y8Z9A0B1C2D"), "webhook_unknown"),
        (("rm", "01J8Z3QW4T5V6X7Y8Z9A0B1C2D"), "webhook_unknown"),
        (("replay", "01J8Z3QW4T5V6X7Y8Z9A0B1C2D", "--since", "yesterday"), "usage"),
        (("in", "ci", "nobody"), "member_name_unknown"),
        (("in", "ci", "#nowhere"), "topic_unknown"),
    ],
)
def test_a_mistake_is_refused_with_a_code_and_a_hint(
    cli: CommandLine, mesh: str, tokens: tuple[str, ...], code: str
) -> None:
    outcome = cli("webhook", *tokens, "--mesh", mesh, "--json")
    assert outcome.exit in (Exit.REFUSED, Exit.USAGE)
    assert outcome.problem["code"] == code
    assert outcome.problem["hint"]
