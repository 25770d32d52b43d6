from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_TYPE_UNSPECIFIED: _ClassVar[MessageType]
    MESSAGE_TYPE_HANDSHAKE: _ClassVar[MessageType]
    MESSAGE_TYPE_AUTH_CHALLENGE: _ClassVar[MessageType]
    MESSAGE_TYPE_AUTH_RESPONSE: _ClassVar[MessageType]
    MESSAGE_TYPE_MESSAGE: _ClassVar[MessageType]
    MESSAGE_TYPE_DELIVERY_CONFIRM: _ClassVar[MessageType]
    MESSAGE_TYPE_CONNECTION_REQUEST: _ClassVar[MessageType]
    MESSAGE_TYPE_CONNECTION_RESPONSE: _ClassVar[MessageType]
    MESSAGE_TYPE_HEARTBEAT: _ClassVar[MessageType]
    MESSAGE_TYPE_AUTH_RESULT: _ClassVar[MessageType]
    MESSAGE_TYPE_CONNECTION_REVOKE: _ClassVar[MessageType]
    MESSAGE_TYPE_BLOCK_NOTIFICATION: _ClassVar[MessageType]
    MESSAGE_TYPE_UNBLOCK_NOTIFICATION: _ClassVar[MessageType]
    MESSAGE_TYPE_QUEUE_STATUS: _ClassVar[MessageType]
    MESSAGE_TYPE_QUEUE_FULL: _ClassVar[MessageType]
    MESSAGE_TYPE_RATE_LIMITED: _ClassVar[MessageType]
MESSAGE_TYPE_UNSPECIFIED: MessageType
MESSAGE_TYPE_HANDSHAKE: MessageType
MESSAGE_TYPE_AUTH_CHALLENGE: MessageType
MESSAGE_TYPE_AUTH_RESPONSE: MessageType
MESSAGE_TYPE_MESSAGE: MessageType
MESSAGE_TYPE_DELIVERY_CONFIRM: MessageType
MESSAGE_TYPE_CONNECTION_REQUEST: MessageType
MESSAGE_TYPE_CONNECTION_RESPONSE: MessageType
MESSAGE_TYPE_HEARTBEAT: MessageType
MESSAGE_TYPE_AUTH_RESULT: MessageType
MESSAGE_TYPE_CONNECTION_REVOKE: MessageType
MESSAGE_TYPE_BLOCK_NOTIFICATION: MessageType
MESSAGE_TYPE_UNBLOCK_NOTIFICATION: MessageType
MESSAGE_TYPE_QUEUE_STATUS: MessageType
MESSAGE_TYPE_QUEUE_FULL: MessageType
MESSAGE_TYPE_RATE_LIMITED: MessageType

class Envelope(_message.Message):
    __slots__ = ("version", "from_address", "to_address", "type", "message_id", "timestamp", "encrypted", "handshake", "heartbeat", "auth_challenge", "auth_response", "auth_result", "connection_request", "connection_response", "connection_revoke", "block_notification", "unblock_notification", "delivery_confirm", "queue_status", "queue_full", "rate_limited")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FROM_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TO_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED_FIELD_NUMBER: _ClassVar[int]
    HANDSHAKE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    AUTH_CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    AUTH_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    AUTH_RESULT_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_RESPONSE_FIELD_NUMBER: _ClassVar[int]
    CONNECTION_REVOKE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_NOTIFICATION_FIELD_NUMBER: _ClassVar[int]
    UNBLOCK_NOTIFICATION_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_CONFIRM_FIELD_NUMBER: _ClassVar[int]
    QUEUE_STATUS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FULL_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMITED_FIELD_NUMBER: _ClassVar[int]
    version: int
    from_address: str
    to_address: str
    type: MessageType
    message_id: bytes
    timestamp: int
    encrypted: EncryptedPayload
    handshake: Handshake
    heartbeat: Heartbeat
    auth_challenge: AuthChallenge
    auth_response: AuthResponse
    auth_result: AuthResult
    connection_request: ConnectionRequest
    connection_response: ConnectionResponse
    connection_revoke: ConnectionRevoke
    block_notification: BlockNotification
    unblock_notification: UnblockNotification
    delivery_confirm: DeliveryConfirm
    queue_status: QueueStatus
    queue_full: QueueFull
    rate_limited: RateLimited
    def __init__(self, version: _Optional[int] = ..., from_address: _Optional[str] = ..., to_address: _Optional[str] = ..., type: _Optional[_Union[MessageType, str]] = ..., message_id: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., encrypted: _Optional[_Union[EncryptedPayload, _Mapping]] = ..., handshake: _Optional[_Union[Handshake, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., auth_challenge: _Optional[_Union[AuthChallenge, _Mapping]] = ..., auth_response: _Optional[_Union[AuthResponse, _Mapping]] = ..., auth_result: _Optional[_Union[AuthResult, _Mapping]] = ..., connection_request: _Optional[_Union[ConnectionRequest, _Mapping]] = ..., connection_response: _Optional[_Union[ConnectionResponse, _Mapping]] = ..., connection_revoke: _Optional[_Union[ConnectionRevoke, _Mapping]] = ..., block_notification: _Optional[_Union[BlockNotification, _Mapping]] = ..., unblock_notification: _Optional[_Union[UnblockNotification, _Mapping]] = ..., delivery_confirm: _Optional[_Union[DeliveryConfirm, _Mapping]] = ..., queue_status: _Optional[_Union[QueueStatus, _Mapping]] = ..., queue_full: _Optional[_Union[QueueFull, _Mapping]] = ..., rate_limited: _Optional[_Union[RateLimited, _Mapping]] = ...) -> None: ...

class EncryptedPayload(_message.Message):
    __slots__ = ("nonce", "ciphertext", "sender_public_key")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXT_FIELD_NUMBER: _ClassVar[int]
    SENDER_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    ciphertext: bytes
    sender_public_key: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., ciphertext: _Optional[bytes] = ..., sender_public_key: _Optional[bytes] = ...) -> None: ...

class PlaintextPayload(_message.Message):
    __slots__ = ("version", "sequence", "timestamp", "content", "content_type")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    version: int
    sequence: int
    timestamp: int
    content: bytes
    content_type: str
    def __init__(self, version: _Optional[int] = ..., sequence: _Optional[int] = ..., timestamp: _Optional[int] = ..., content: _Optional[bytes] = ..., content_type: _Optional[str] = ...) -> None: ...

class Handshake(_message.Message):
    __slots__ = ("version", "signing_key", "encryption_key")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIGNING_KEY_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_KEY_FIELD_NUMBER: _ClassVar[int]
    version: int
    signing_key: bytes
    encryption_key: bytes
    def __init__(self, version: _Optional[int] = ..., signing_key: _Optional[bytes] = ..., encryption_key: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("timestamp",)
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    timestamp: int
    def __init__(self, timestamp: _Optional[int] = ...) -> None: ...

class AuthChallenge(_message.Message):
    __slots__ = ("version", "nonce", "issued_at_ms", "expires_at_ms", "relay_host")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    RELAY_HOST_FIELD_NUMBER: _ClassVar[int]
    version: int
    nonce: bytes
    issued_at_ms: int
    expires_at_ms: int
    relay_host: str
    def __init__(self, version: _Optional[int] = ..., nonce: _Optional[bytes] = ..., issued_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., relay_host: _Optional[str] = ...) -> None: ...

class AuthResponse(_message.Message):
    __slots__ = ("version", "public_key", "signature", "nonce")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    version: int
    public_key: bytes
    signature: bytes
    nonce: bytes
    def __init__(self, version: _Optional[int] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class AuthResult(_message.Message):
    __slots__ = ("success", "error_message", "assigned_address")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    error_message: str
    assigned_address: str
    def __init__(self, success: _Optional[bool] = ..., error_message: _Optional[str] = ..., assigned_address: _Optional[str] = ...) -> None: ...

class ConnectionRequest(_message.Message):
    __slots__ = ("from_address", "to_address", "message", "sender_public_key", "expires_at")
    FROM_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TO_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SENDER_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    from_address: str
    to_address: str
    message: str
    sender_public_key: bytes
    expires_at: int
    def __init__(self, from_address: _Optional[str] = ..., to_address: _Optional[str] = ..., message: _Optional[str] = ..., sender_public_key: _Optional[bytes] = ..., expires_at: _Optional[int] = ...) -> None: ...

class ConnectionResponse(_message.Message):
    __slots__ = ("from_address", "to_address", "accepted", "responder_public_key")
    FROM_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TO_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RESPONDER_PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    from_address: str
    to_address: str
    accepted: bool
    responder_public_key: bytes
    def __init__(self, from_address: _Optional[str] = ..., to_address: _Optional[str] = ..., accepted: _Optional[bool] = ..., responder_public_key: _Optional[bytes] = ...) -> None: ...

class ConnectionRevoke(_message.Message):
    __slots__ = ("from_address", "to_address")
    FROM_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TO_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    from_address: str
    to_address: str
    def __init__(self, from_address: _Optional[str] = ..., to_address: _Optional[str] = ...) -> None: ...

class BlockNotification(_message.Message):
    __slots__ = ("blocker_address", "blocked_address")
    BLOCKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    blocker_address: str
    blocked_address: str
    def __init__(self, blocker_address: _Optional[str] = ..., blocked_address: _Optional[str] = ...) -> None: ...

class UnblockNotification(_message.Message):
    __slots__ = ("unblocker_address", "unblocked_address")
    UNBLOCKER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UNBLOCKED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    unblocker_address: str
    unblocked_address: str
    def __init__(self, unblocker_address: _Optional[str] = ..., unblocked_address: _Optional[str] = ...) -> None: ...

class DeliveryConfirm(_message.Message):
    __slots__ = ("message_id", "signature", "timestamp", "state", "was_stored")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAS_STORED_FIELD_NUMBER: _ClassVar[int]
    message_id: bytes
    signature: bytes
    timestamp: int
    state: str
    was_stored: bool
    def __init__(self, message_id: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., state: _Optional[str] = ..., was_stored: _Optional[bool] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("pending_count",)
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    pending_count: int
    def __init__(self, pending_count: _Optional[int] = ...) -> None: ...

class QueueFull(_message.Message):
    __slots__ = ("recipient_address", "reason")
    RECIPIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    recipient_address: str
    reason: str
    def __init__(self, recipient_address: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RateLimited(_message.Message):
    __slots__ = ("retry_after_ms", "reason")
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    retry_after_ms: int
    reason: str
    def __init__(self, retry_after_ms: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
