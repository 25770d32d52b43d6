"""Settings for a Spark that lives for a test: the second compiler would pay off after minutes, and takes a core."""

from __future__ import annotations

import shlex

#: With one compiler Java reserves 48 MB for its code; one Spark for all tests fills that, and then compiles no more.
#: The collector without threads of its own leaves the cores to the tests.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

#: Spark would compile each plan to Java, which takes longer than its few rows; a cluster and Spark Connect do it.
NO_COMPILING = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def quick_environment() -> dict[str, str]:
    """Return what makes a command started with it use these settings.

    They are arguments, not a directory of settings: Java would not use its class archive with one on its class path.
    """
    settings = NO_COMPILING | {
        "spark.driver.defaultJavaOptions": QUICK_START,
        "spark.sql.shuffle.partitions": "2",
    }
    flags = [f"--conf {shlex.quote(f'{name}={value}')}" for name, value in settings.items()]
    return {"PYSPARK_SUBMIT_ARGS": " ".join((*flags, "pyspark-shell"))}
