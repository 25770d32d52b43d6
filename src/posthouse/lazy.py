"""Packages whose public names load their modules at first use (PEP 562).

Importing such a package imports no other module, so that a small command does not wait for networking and cryptography.
If you add a name to one of these packages: 1. its module in the package's `_HOMES`, 2. `__all__`, sorted, 3. the block
for type checkers.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would double the start-up time of the smallest commands
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def attribute_loader(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return the `__getattr__` of a package; `homes` has module below posthouse -> the public names that live there."""
    home_of = {name: f"posthouse.{home}" for home, names in homes.items() for name in names}

    def load(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import sys
        from importlib import import_module

        value: object = getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
