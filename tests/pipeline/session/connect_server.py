"""A server of Spark Connect with a Spark of its own: tells its port, and ends when its input does.

The files that clients send stay in the server's Spark and fail later tasks of other sessions there, so that the
session of the tests cannot be the server.
"""

from __future__ import annotations

import sys
from typing import Any

from posthouse.pipeline.session import spark_session
from tests.pipeline.quick_start import QUICK_START
from tests.pipeline.s3 import free_port


def start_server(spark: Any) -> int:
    """Start the server in the JVM of a session; return its port."""
    port = free_port()
    spark._jvm.System.setProperty("spark.connect.grpc.binding.port", str(port))
    spark._jsc.sc().conf().set("spark.connect.grpc.binding.port", str(port))
    spark._jvm.org.apache.spark.sql.connect.service.SparkConnectService.start(spark._jsc.sc())
    return port


if __name__ == "__main__":
    settings = {"spark.driver.defaultJavaOptions": QUICK_START}
    session = spark_session("local[2]", shuffle_partitions=2, settings=settings)
    sys.stdout.write(f"{start_server(session)}\n")
    sys.stdout.flush()
    sys.stdin.read()
    session.stop()
