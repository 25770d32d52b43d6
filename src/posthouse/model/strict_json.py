"""Strict JSON: text with exactly one meaning, values that survive JSON unchanged, and the canonical form (JCS).

Duplicate keys, NaN, infinities, lone surrogates, invalid UTF-8 and nesting beyond JSON_MAX_DEPTH are refused, each
with its own code. msgspec keeps the last of two equal keys, hence `refuse_duplicate_keys`. Text that is exactly what
msgspec writes for the value it reads can contain none of these faults, so most input takes that fast path.

A field whose name ends in `_ns` may hold its nanoseconds as decimal text, for languages whose numbers are not exact
beyond 2^53 (JavaScript). The relay writes such text only for a caller that asks for it.

`jcs` is RFC 8785, one to one: a value that would not be read back equal (integers beyond 2^53-1, also written as
floats, keys that are not strings) is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec
import rfc8785

from posthouse.model.errors import error
from posthouse.model.limits import INT64_MAX, JSON_MAX_DEPTH, SAFE_INTEGER_MAX

In = TypeVar("In")
Out = TypeVar("Out")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_UINT64_MAX = 2 * INT64_MAX + 1
_NOT_PLAIN = object()
_read_plain = msgspec.json.Decoder().decode
_write_plain = msgspec.json.Encoder().encode


def parse_json(data: bytes | str) -> Any:
    """Return the one value of a JSON text, or raise json_invalid, json_duplicate_key or json_too_deep."""
    if type(data) is bytes and (value := _plain(data)) is not _NOT_PLAIN:
        return value
    text = _text(data)
    try:
        value = _DECODER.decode(text)
    except RecursionError as fault:
        raise error("json_too_deep", limit=JSON_MAX_DEPTH) from fault
    except ValueError as fault:
        raise error("json_invalid", reason=str(fault)) from fault
    if _depth_exceeds(value, JSON_MAX_DEPTH):
        raise error("json_too_deep", limit=JSON_MAX_DEPTH)
    if _SURROGATE_ESCAPE.search(text) is not None:
        _refuse_surrogates(value)
    return value


def _plain(data: bytes) -> Any:
    """Return the value of a text that is what msgspec would write, except for white space, else _NOT_PLAIN."""
    if not data.isascii() or data.count(b"{") + data.count(b"[") > JSON_MAX_DEPTH:
        return _NOT_PLAIN
    try:
        value = _read_plain(data)
    except msgspec.DecodeError:
        return _NOT_PLAIN
    written = _write_plain(value)
    return value if written == data or written == _without_space(data) else _NOT_PLAIN


def _without_space(data: bytes) -> bytes:
    return msgspec.json.format(data, indent=-1)


def refuse_duplicate_keys(data: bytes | str) -> None:
    """Raise json_duplicate_key if any object of a JSON text has a key twice."""
    parse_json(data)


def convert_or_refuse(name: str, convert: Callable[[In], Out], value: In) -> Out:
    """Return `convert(value)`, or raise value_invalid for `name` with the reason that msgspec gives."""
    try:
        return convert(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise error("value_invalid", name=name, reason=str(fault)) from fault


def check_json_value(value: Any) -> None:
    """Raise payload_unserialisable unless the value survives JSON unchanged."""
    reason = _value_fault(value, JSON_MAX_DEPTH)
    if reason is not None:
        raise error("payload_unserialisable", reason=reason)


def exceeds(value: Any, limit: int, per_item: int = 1) -> bool:
    """Return True if the characters of all texts plus `per_item` for every key and value are more than `limit`.

    With 1 per item that is a lower bound of the bytes of the JSON text. The cost is bounded by the limit, not by the
    value; a value that is nested too deep counts as small, because check_json_value refuses it.
    """
    size, level = per_item, [value]
    for _ in range(JSON_MAX_DEPTH + 1):
        children: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is str:
                size += len(item)
            elif kind is dict or kind is list or kind is tuple:
                size += len(item) * per_item
                if size > limit:
                    return True
                children += item
                if kind is dict:
                    size += len(item) * per_item
                    children += item.values()
        if size > limit:
            return True
        if not children:
            return False
        level = children
    return False


def _text(data: bytes | str) -> str:
    if isinstance(data, str):
        return data
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise error("json_invalid", reason=f"not UTF-8 at byte {fault.start}") from fault


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise error("json_duplicate_key", key=key)
            seen.add(key)
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise error("json_invalid", reason=f"{name} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise error("json_invalid", reason=f"the number {text[:40]} is out of range")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float)


def _depth_exceeds(value: Any, levels: int) -> bool:
    level = [value]
    for _ in range(levels + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: Any) -> Any:
    if type(value) is dict:
        return value.values()
    return value if type(value) is list else ()


def _refuse_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as fault:
        raise error("json_invalid", reason="a lone surrogate") from fault


def _value_fault(value: Any, levels: int) -> str | None:
    kind = type(value)
    if value is None or kind is bool:
        return None
    if kind is str:
        return _text_fault(value)
    if kind is int:
        return None if -INT64_MAX - 1 <= value <= _UINT64_MAX else "an integer does not fit 64 bits"
    if kind is float:
        return None if math.isfinite(value) else f"{value} is not a JSON number"
    if levels == 0:
        return f"it is nested deeper than {JSON_MAX_DEPTH} levels"
    if kind is dict:
        return _dict_fault(value, levels)
    if kind is list or kind is tuple:
        return next((fault for item in value if (fault := _value_fault(item, levels - 1))), None)
    return f"{kind.__name__} is not a JSON type"


def _dict_fault(value: dict[Any, Any], levels: int) -> str | None:
    for key, item in value.items():
        if type(key) is not str:
            return f"the key {key!r} is not a string"
        fault = _text_fault(key) or _value_fault(item, levels - 1)
        if fault is not None:
            return fault
    return None


def _text_fault(text: str) -> str | None:
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "a string holds a lone surrogate"
    return None


_EXACT_MAX = 2**53  # up to here every integer has its own floating point number
DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
# Neither matches inside a JSON string, where every quote has a backslash before it.
_NUMBER = re.compile(rb'(_ns":)(-?[0-9]+)(?=[,}])')
_TEXT = re.compile(rb'(_ns"\s*:\s*)"(0|[1-9][0-9]{0,18})"')


def write_ns_as_text(encoded: bytes) -> bytes:
    """Return JSON without white space, with the numbers of its `_ns` fields as text."""
    return _NUMBER.sub(rb'\1"\2"', encoded)


def write_ns_as_number(encoded: bytes) -> bytes:
    """Return JSON with the decimal texts of its `_ns` fields as numbers."""
    return _TEXT.sub(rb"\1\2", encoded)


def convert_with_ns(value: Any, type: type[Out]) -> Out:  # noqa: A002 - the domain's word
    """Convert a JSON value as msgspec does, or raise msgspec.ValidationError; accept what JSON Schema calls an integer.

    That is a number like 1.0, except in a signed event, and decimal text in `_ns` fields.
    """
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError:
        return msgspec.convert(_with_numbers(value), type)


def _with_numbers(value: Any, is_signed: bool = False) -> Any:
    if isinstance(value, list):
        return [_with_numbers(each, is_signed) for each in value]
    if isinstance(value, dict):
        return {
            name: _with_numbers(ns_number(each) if name.endswith("_ns") else each, is_signed or name == "event")
            for name, each in value.items()
        }
    is_whole = type(value) is float and value.is_integer() and abs(value) <= _EXACT_MAX
    return int(value) if is_whole and not is_signed else value


def ns_number(value: Any) -> Any:
    """Return the number in decimal text; any other value as it is."""
    return int(value) if isinstance(value, str) and DECIMAL.fullmatch(value) else value


_FIRST_EXPONENT_FORM = 1e21  # from here on JCS writes an exponent, so the text cannot be taken for an integer


def jcs(value: Any) -> str:
    """Return the canonical text of a JSON value, or raise not_canonical."""
    _refuse_large_floats(value)
    try:
        return rfc8785.dumps(value).decode("utf-8")
    except RecursionError as fault:
        raise error("not_canonical", reason="it is nested too deep") from fault
    except ValueError as fault:  # the library's own errors and the codec's are both ValueErrors
        raise error("not_canonical", reason=str(fault)) from fault


def parse_jcs(text: str) -> Any:
    """Return the value of a text in JCS form, or raise not_canonical or the code of the fault in its JSON."""
    value = parse_json(text)
    if jcs(value) != text:
        raise error("not_canonical", reason="the text is not in JCS form")
    return value


def _refuse_large_floats(value: Any) -> None:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif isinstance(item, float) and SAFE_INTEGER_MAX < abs(item) < _FIRST_EXPONENT_FORM:
            raise error("not_canonical", reason=f"{item!r} is written as an integer beyond 2^53-1")
