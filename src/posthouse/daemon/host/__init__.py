"""Which machine an identity lives on."""

from posthouse.daemon.host.clone import accept_host, check_host
from posthouse.daemon.host.fingerprint import HostFingerprint, read_host

__all__ = ["HostFingerprint", "accept_host", "check_host", "read_host"]
