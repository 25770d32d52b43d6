"""Which machine this is: a digest over its host id and its first physical network card.

    sha256("v2" NUL host id NUL stable MAC)

The host id decides: with the same one it is the same machine even if the card moved. Virtual, tunnel, container and
bridge interfaces are left out, because they come and go. Nothing of it leaves the machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

VERSION = "v2"
_HOST_ID_FILES = ("etc/machine-id", "var/lib/dbus/machine-id")
_WIRED, _WIRELESS = ("en", "eth"), ("wl",)
_NO_MAC = "00:00:00:00:00:00"


@dataclass(frozen=True, slots=True)
class HostFingerprint:
    """What tells a machine from others."""

    host_id: str
    mac: str

    @property
    def digest(self) -> str:
        """The fingerprint, in hexadecimal digits."""
        return hashlib.sha256("\0".join((VERSION, self.host_id, self.mac)).encode()).hexdigest()

    @property
    def host_digest(self) -> str:
        """A digest of the host id alone: the same machine with another card."""
        return hashlib.sha256("\0".join((VERSION, self.host_id)).encode()).hexdigest()


def read_host(root: Path = Path("/")) -> HostFingerprint:
    """Return the fingerprint of the machine whose files lie below `root`; parts it lacks are empty."""
    return HostFingerprint(_host_id(root), _stable_mac(root / "sys/class/net"))


def _host_id(root: Path) -> str:
    for name in _HOST_ID_FILES:
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text and text != "uninitialized":
            return text
    return ""


def _stable_mac(interfaces: Path) -> str:
    try:
        names = sorted(path.name for path in interfaces.iterdir())
    except OSError:
        return ""
    for kinds in (_WIRED, _WIRELESS):
        for name in names:
            if name.startswith(kinds) and (mac := _physical_mac(interfaces / name)):
                return mac
    return ""


def _physical_mac(interface: Path) -> str | None:
    """Return the address of a card; only hardware has a device behind it, virtual interfaces have none."""
    if not (interface / "device").exists() or (interface / "bridge").exists():
        return None
    try:
        mac = (interface / "address").read_text().strip().lower()
    except OSError:
        return None
    return mac if mac and mac != _NO_MAC else None
