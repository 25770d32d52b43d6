"""Work in Spark's workers whose failures come back as what they are.

An exception of a worker reaches the driver as a long text. So a refusal travels as a value and is raised on the
driver again, with its code and hint; what is no refusal stays an exception, and Spark tries the task again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from posthouse.model.errors import PosthouseError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def run_in_workers(spark: SparkSession, work: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Run `work` once per task and return the results in order; raise the first refusal."""
    if not tasks:
        return []
    results = spark.sparkContext.parallelize(tasks, len(tasks)).map(lambda task: _attempt(work, task)).collect()
    for result in results:
        if isinstance(result, PosthouseError):
            raise result
    return [result for result in results if not isinstance(result, PosthouseError)]


def _attempt(work: Callable[[T], R], task: T) -> R | PosthouseError:
    try:
        return work(task)
    except PosthouseError as failure:
        return failure
