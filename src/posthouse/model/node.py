"""Names of participants: node ids, meshes and members with their roles, and which names could be mistaken for others.

A node id is `ed25519:` and 64 lower-case hexadecimal digits. This module checks only the form; posthouse.keys checks
that the digits are a valid public key. Nothing is normalized: other spellings are refused.
"""

from __future__ import annotations

import enum
import re

from posthouse.model.errors import error
from posthouse.model.limits import MEMBER_NAME_MAX_CHARS, MESH_NAME_MAX_CHARS

NODE_SCHEME = "ed25519"
DEFAULT_MESH = "main"
PINCH_MESH = "pinch"  # reserved: its nodes are Pinch addresses
#: the form of a node id
NODE_ID = re.compile(r"ed25519:[0-9a-f]{64}")
_KEY_HEX = re.compile(r"[0-9a-f]{64}")
#: the form of the name of a mesh
MESH_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MESH_NAME_MAX_CHARS}}}")
#: the form of the name of a member
MEMBER_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MEMBER_NAME_MAX_CHARS}}}")


class Role(enum.StrEnum):
    """The role of a member, the least powerful first."""

    READER = "reader"
    MEMBER = "member"
    ADMIN = "admin"


def is_node_id(text: str) -> bool:
    """Return True if a string has the form of a node id."""
    return NODE_ID.fullmatch(text) is not None


def validate_node_id(node: str) -> str:
    """Return the node id unchanged, or raise node_id_invalid."""
    if type(node) is not str or not is_node_id(node):
        raise error("node_id_invalid", node=node, reason="it is not `ed25519:` and 64 lower-case hexadecimal digits")
    return node


def node_key(node: str) -> bytes:
    """Return the 32 bytes of the public key in a node id, or raise node_id_invalid."""
    return bytes.fromhex(node_hex(node))


def node_hex(node: str) -> str:
    """Return the 64 digits of a node id, or raise node_id_invalid."""
    return validate_node_id(node)[len(NODE_SCHEME) + 1 :]


def node_from_key(key: bytes) -> str:
    """Return the node id of a public key of 32 bytes."""
    if len(key) != 32:
        raise error("node_id_invalid", node=key.hex(), reason=f"the key has {len(key)} bytes, not 32")
    return f"{NODE_SCHEME}:{key.hex()}"


def node_from_hex(digits: str) -> str:
    """Return the node id of 64 lower-case digits, or raise node_id_invalid."""
    if _KEY_HEX.fullmatch(digits) is None:
        raise error("node_id_invalid", node=digits, reason="it is not 64 lower-case hexadecimal digits")
    return f"{NODE_SCHEME}:{digits}"


def is_mesh_name(text: str) -> bool:
    """Return True if a string can be the name of a mesh."""
    return MESH_NAME.fullmatch(text) is not None


def validate_mesh_name(mesh: str) -> str:
    """Return the mesh name unchanged, or raise mesh_name_invalid."""
    if type(mesh) is not str or not is_mesh_name(mesh):
        raise error("mesh_name_invalid", mesh=mesh)
    return mesh


#: files of the directory in which a daemon has one folder per mesh; those with a dot in their name cannot collide
RESERVED_MESH_NAMES = frozenset({"sock", "pid", "local_token", "mcp_token", "schema_version"})


def validate_served_mesh_name(mesh: str) -> str:
    """Return the name of a mesh that a daemon can serve, or raise mesh_name_invalid or mesh_name_reserved."""
    if validate_mesh_name(mesh).lower() in RESERVED_MESH_NAMES:  # some file systems ignore case
        raise error("mesh_name_reserved", mesh=mesh)
    return mesh


def is_key_digits(text: str) -> bool:
    """Return True if a string is 64 hexadecimal digits: as a recipient it is always a key, never a name."""
    return len(text) == 64 and _HEX.fullmatch(text) is not None


KEY_PREFIX_MIN_DIGITS = 8  # this many digits of a key, or more, may stand for its node
_HEX = re.compile(r"[0-9a-fA-F]+")
#: characters that people confuse -> the one that stands for all of them
_ALIKE = str.maketrans({"0": "o", "1": "l", "i": "l", "_": "-"})


def looks_like_key(name: str) -> bool:
    """Return True if people or programs could take a name for a key or the beginning of one."""
    is_digits = len(name) >= KEY_PREFIX_MIN_DIGITS and _HEX.fullmatch(name) is not None
    return is_digits or name.lower().startswith(NODE_SCHEME)


def name_skeleton(name: str) -> str:
    """Return the same text for names that look alike: without case, with 0/o, 1/l/i and -/_ equal."""
    return name.lower().translate(_ALIKE)


def validate_member_name(name: str) -> str:
    """Return the member name unchanged, or raise member_name_invalid."""
    if type(name) is not str or MEMBER_NAME.fullmatch(name) is None:
        raise error("member_name_invalid", name=name)
    return name
