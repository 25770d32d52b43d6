"""Settings for a Spark that lives for a test: the second compiler would pay off after minutes, and takes a core."""

from __future__ import annotations

from pathlib import Path

#: With one compiler Java reserves 48 MB for its code; one Spark for all tests fills that, and then compiles no more.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


def quick_environment(folder: Path) -> dict[str, str]:
    """Return what makes a command started with it use these settings; written below `folder`."""
    place = folder / "conf"
    place.mkdir(exist_ok=True)
    (place / "spark-defaults.conf").write_text(
        f"spark.driver.defaultJavaOptions {QUICK_START}\nspark.sql.shuffle.partitions 2\n"
    )
    return {"SPARK_CONF_DIR": str(place)}
