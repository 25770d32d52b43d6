"""Whether an identity is where it was made: a copied directory would let two machines speak as one node.

The fingerprint is written when the identity is made and compared at every start. A machine that cannot be told from
others is never taken for another one, so policy decides nothing there.

    {"format": "posthouse-host-v2", "fingerprint": "<64 hex>", "host": "<64 hex>"}

If you change the form: give it a new name, read the old one too, add a test with a file of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import structlog

from posthouse.daemon.host.fingerprint import HostFingerprint
from posthouse.daemon.settings import ClonePolicy
from posthouse.files import read_private, write_atomic
from posthouse.model.errors import error

log = structlog.get_logger(__name__)


class _Content(msgspec.Struct):
    format: Literal["posthouse-host-v2"]
    fingerprint: str
    #: of the host id alone
    host: str


def check_host(path: Path, host: HostFingerprint, policy: ClonePolicy, directory: Path) -> None:
    """Compare this machine with the one the identity was made on; raises host_changed under `refuse`."""
    try:
        known = msgspec.json.decode(read_private(path), type=_Content)
    except FileNotFoundError:
        accept_host(path, host)
        return
    except msgspec.MsgspecError as fault:
        raise error("host_changed", directory=str(directory), reason=f"{path.name} cannot be read") from fault
    if known.fingerprint == host.digest:
        return
    if known.host == host.host_digest:
        log.info("host_card_moved")
        accept_host(path, host)
        return
    if policy is ClonePolicy.REFUSE:
        raise error("host_changed", directory=str(directory))
    log.log(30 if policy is ClonePolicy.WARN else 20, "host_changed", policy=policy.value)


def accept_host(path: Path, host: HostFingerprint) -> None:
    """Write down that the identity lives on this machine."""
    content = _Content("posthouse-host-v2", host.digest, host.host_digest)
    write_atomic(path, msgspec.json.encode(content) + b"\n")
