"""Keys: node identities, key files, signatures over bytes, and sealing for readers."""

from posthouse.keys.identity import NodeKey, new_token, node_id, public_key, same_token
from posthouse.keys.sealing import open_sealed, seal
from posthouse.keys.signature import sign_native, sign_sshsig, verify
from posthouse.keys.ssh import read_public_line, write_public_line

__all__ = [
    "NodeKey",
    "new_token",
    "node_id",
    "open_sealed",
    "public_key",
    "read_public_line",
    "same_token",
    "seal",
    "sign_native",
    "sign_sshsig",
    "verify",
    "write_public_line",
]
