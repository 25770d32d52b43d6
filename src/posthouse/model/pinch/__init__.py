"""Rules of the Pinch wire: addresses, and the bytes that are signed."""

from posthouse.model.pinch.address import PinchAddress, address_of, parse_address, validate_host
from posthouse.model.pinch.delivery import delivery_id
from posthouse.model.pinch.signed import auth_bytes, confirm_bytes

__all__ = [
    "PinchAddress",
    "address_of",
    "auth_bytes",
    "confirm_bytes",
    "delivery_id",
    "parse_address",
    "validate_host",
]
