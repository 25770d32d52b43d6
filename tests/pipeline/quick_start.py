"""Settings for a Spark that lives for a test: the second compiler would pay off after minutes, and takes a core."""

from __future__ import annotations

import shlex

#: With one compiler Java reserves 48 MB for its code; one Spark for all tests fills that, and then compiles no more.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"

#: Spark would compile each plan to Java, which takes longer than its few rows; the tests of programs let it.
NO_COMPILING = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def quick_environment() -> dict[str, str]:
    """Return what makes a command started with it use these settings.

    They are arguments, not a directory of settings: Java would not use its class archive with one on its class path.
    """
    settings = (f"spark.driver.defaultJavaOptions={QUICK_START}", "spark.sql.shuffle.partitions=2")
    return {"PYSPARK_SUBMIT_ARGS": " ".join(f"--conf {shlex.quote(each)}" for each in settings) + " pyspark-shell"}
