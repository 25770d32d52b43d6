"""`posthouse pipeline serve`: keep a session warm."""

from __future__ import annotations

import signal

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.pipeline.place import HERE, Place


def serve(*, place: Place = HERE, output: Output = PLAIN) -> None:
    """Keep Spark warm and answer questions on a socket in the lake's directory, until Ctrl-C.

    `posthouse pipeline query` uses it by itself.

    For example:

        posthouse pipeline serve &
        posthouse pipeline query 'SELECT count(*) FROM bronze_journal'
    """
    import threading

    from posthouse.pipeline.serve import Server

    spark = place.session()
    try:
        spark.range(1).count()  # the first job is the slow one
        server = Server(spark, place.open_lake())
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: threading.Thread(target=server.close).start())
        output.answer({"event": "ready", "socket": str(server.path)}, f"ready on {server.path}")
        server.serve()
    finally:
        spark.stop()
