"""The version of posthouse; the build reads it from here."""

__version__ = "0.1.0"


def version_line() -> str:
    """Return the versions of posthouse and of the Python it runs on."""
    import sys

    return f"posthouse {__version__} (Python {sys.version.split()[0]})"
