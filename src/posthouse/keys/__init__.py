"""Keys: node identities, key files, signatures over bytes, and sealing for readers."""

from posthouse.keys.identity import NodeKey, node_id, public_key
from posthouse.keys.openssh import read_public_line, write_public_line
from posthouse.keys.sealing import open_sealed, seal
from posthouse.keys.signature import sign_native, sign_sshsig, verify
from posthouse.keys.token import new_token, same_token

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
