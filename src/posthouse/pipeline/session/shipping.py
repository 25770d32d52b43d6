"""Our package for the workers of a cluster: a zip of it, made by the tool and sent by Spark.

Only posthouse itself travels. Its binary dependencies (pyarrow, adbc, blake3, msgspec, PyNaCl, ...) belong to the
environment of the cluster's Python, and so does a place for the lake that driver and workers share.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import posthouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEFT_OUT = ("__pycache__",)


def ship_package(spark: SparkSession) -> None:
    """Send our package to the workers of a session; the zip lies there as long as this process, for late workers."""
    folder = tempfile.mkdtemp(prefix="posthouse-package-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    spark.sparkContext.addPyFile(str(zip_package(Path(folder) / "posthouse.zip")))


def zip_package(target: Path) -> Path:
    """Write our package into a zip that Python can import from."""
    root = Path(posthouse.__path__[0])
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and not set(path.parts) & set(_LEFT_OUT):
                archive.write(path, Path("posthouse") / path.relative_to(root))
    return target
