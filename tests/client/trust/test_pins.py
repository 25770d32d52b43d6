from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from posthouse.cli.config import find_home
from posthouse.client import Pins
from posthouse.client.trust.pins import Membership, Memberships
from posthouse.model.errors import Refused

ORIGIN = "https://relay.example:7420"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "pins.json"


def test_first_key_is_pinned_and_another_one_refused(path: Path) -> None:
    Pins(path).check_relay(ORIGIN, "ed25519:one")
    Pins(path).check_relay(ORIGIN, "ed25519:one")
    with pytest.raises(Refused) as refused:
        Pins(path).check_relay(ORIGIN, "ed25519:two")
    assert refused.value.code == "relay_key_changed"
    assert Pins(path).relay(ORIGIN) == "ed25519:one"


def test_trusted_key_replaces_the_pinned_one(path: Path) -> None:
    pins = Pins(path)
    pins.check_relay(ORIGIN, "ed25519:one")
    assert pins.trust_relay(ORIGIN, "ed25519:two") == "ed25519:one"
    pins.check_relay(ORIGIN, "ed25519:two")


def test_members_are_pinned_per_relay_key_and_mesh(path: Path) -> None:
    pins = Pins(path)
    assert pins.pin_members("relay-a", "team", {"bob": "ed25519:one"}) == {}
    assert pins.pin_members("relay-a", "other", {"bob": "ed25519:two"}) == {}
    assert pins.pin_members("relay-b", "team", {"bob": "ed25519:three"}) == {}


def test_changed_key_concerns_its_name_only(path: Path) -> None:
    pins = Pins(path)
    pins.pin_members("relay-a", "team", {"bob": "ed25519:one", "carol": "ed25519:c"})
    found = {"alice": "ed25519:x", "bob": "ed25519:two", "carol": "ed25519:c"}
    assert pins.pin_members("relay-a", "team", found) == {"bob": "ed25519:one"}
    assert pins.member("relay-a", "team", "alice") == "ed25519:x"
    assert pins.member("relay-a", "team", "bob") == "ed25519:one"
    pins.trust_member("relay-a", "team", "bob", "ed25519:two")
    assert pins.pin_members("relay-a", "team", found) == {}


def test_file_is_private_and_so_is_its_directory(path: Path) -> None:
    Pins(path).check_relay(ORIGIN, "ed25519:one")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_reading_creates_no_file(path: Path) -> None:
    assert Pins(path).relay(ORIGIN) is None
    assert not path.parent.exists()


def test_file_that_others_can_write_is_refused(path: Path) -> None:
    Pins(path).check_relay(ORIGIN, "ed25519:one")
    path.chmod(0o666)
    with pytest.raises(Refused) as refused:
        Pins(path).relay(ORIGIN)
    assert refused.value.code == "file_not_private"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format":"posthouse-pins-v9"}', '{"relays":{"x":1}}'])
def test_damaged_file_is_refused_not_replaced(path: Path, text: str) -> None:
    Pins(path).check_relay(ORIGIN, "ed25519:one")
    path.write_text(text)
    with pytest.raises(Refused) as refused:
        Pins(path).check_relay(ORIGIN, "ed25519:two")
    assert refused.value.code == "pins_malformed"
    assert path.read_text() == text


def pin_many(path: Path, name: str) -> None:
    for number in range(20):
        Pins(path).check_relay(f"{name}-{number}", "ed25519:x")


def test_processes_that_pin_at_once_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=pin_many, args=(path, name)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert all(Pins(path).relay(f"{name}-{number}") for name in ("a", "b") for number in range(20))


def test_remembering_a_mesh_returns_its_previous_relay(tmp_path: Path) -> None:
    memberships = Memberships(tmp_path / "home" / "meshes.json")
    here = Membership("https://a.example:1", "ed25519:a", "bob")
    assert memberships.remember("team", here) is None
    assert Memberships(tmp_path / "home" / "meshes.json").get("team") == here
    assert memberships.remember("team", Membership("https://b.example:1", "ed25519:b")) == here


def test_client_keeps_its_pins_and_meshes_in_the_home_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POSTHOUSE_HOME", str(tmp_path))
    Memberships.of_home().remember("team", Membership("https://a.example:1", "ed25519:a"))
    assert (find_home().path / "meshes.json").exists()
