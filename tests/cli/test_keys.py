from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from posthouse.keys import keyfile, read_public_line
from posthouse.model.codes.spec import Exit
from tests.cli.command_line import CommandLine


@pytest.fixture
def openssh_key(tmp_path: Path) -> Path:
    """A key as ssh-keygen makes it, protected by the passphrase `open sesame`."""
    path = tmp_path / "id_ed25519"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "open sesame", "-C", "", "-f", str(path)]
    subprocess.run(command, check=True, timeout=30)
    return path


def test_new_key_is_private_and_shown_by_its_public_side(cli: CommandLine) -> None:
    made = cli("keys", "new", "--json").value
    path = cli.home / "key.json"
    assert made["file"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert cli.home.stat().st_mode & 0o777 == 0o700
    key = keyfile.load(path)
    assert made["node"] == key.node == read_public_line(made["ssh"])
    assert key.reveal_seed().hex() not in str(made)


def test_existing_key_is_never_replaced(cli: CommandLine) -> None:
    cli("keys", "new")
    before = (cli.home / "key.json").read_bytes()
    outcome = cli("keys", "new", "--json")
    assert outcome.exit == Exit.IDENTITY
    assert outcome.problem["code"] == "key_file_exists"
    assert (cli.home / "key.json").read_bytes() == before


def test_show_without_a_key_says_how_to_make_one(cli: CommandLine) -> None:
    outcome = cli("keys", "show")
    assert outcome.exit == Exit.IDENTITY
    assert "`posthouse up`" in outcome.err and "`posthouse keys new`" in outcome.err


def test_show_prints_the_same_key_as_new(cli: CommandLine) -> None:
    assert cli("keys", "new", "--json").value == cli("keys", "show", "--json").value


def test_key_file_option_names_another_place(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "agents" / "one.json"
    cli("keys", "new", "--key-file", str(path))
    assert cli("keys", "show", "--key-file", str(path), "--json").value["file"] == str(path)
    assert not cli.home.exists()


def test_imported_key_has_the_public_key_of_openssh(cli: CommandLine, openssh_key: Path, tmp_path: Path) -> None:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("open sesame\n")
    passphrase.chmod(0o600)
    tokens = ("keys", "import", str(openssh_key), "--passphrase-file", str(passphrase), "--json")
    imported = cli(*tokens).value
    assert imported["ssh"] == openssh_key.with_suffix(".pub").read_text().strip()
    assert keyfile.load(cli.home / "key.json").node == imported["node"]


def test_protected_key_without_terminal_or_file_is_refused(cli: CommandLine, openssh_key: Path) -> None:
    outcome = cli("keys", "import", str(openssh_key), "--json")
    assert outcome.exit == Exit.IDENTITY
    assert outcome.problem["code"] == "passphrase_needed"
    assert not (cli.home / "key.json").exists()


def test_passphrase_that_others_can_read_is_refused(cli: CommandLine, openssh_key: Path, tmp_path: Path) -> None:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("open sesame")
    passphrase.chmod(0o644)
    outcome = cli("keys", "import", str(openssh_key), "--passphrase-file", str(passphrase), "--json")
    assert outcome.problem["code"] == "file_not_private"


def test_wrong_passphrase_has_its_own_error(cli: CommandLine, openssh_key: Path, tmp_path: Path) -> None:
    passphrase = tmp_path / "passphrase"
    passphrase.write_text("abracadabra")
    passphrase.chmod(0o600)
    outcome = cli("keys", "import", str(openssh_key), "--passphrase-file", str(passphrase), "--json")
    assert outcome.problem["code"] == "passphrase_wrong"


def test_node_id_alone_is_one_word(cli: CommandLine) -> None:
    made = cli("keys", "new", "--json").value
    assert cli("keys", "show", "--node").out == made["node"] + "\n"
    assert cli("keys", "show", "--node", "--json").value == {"node": made["node"]}
