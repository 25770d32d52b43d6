"""`posthouse pipeline shell`: Python with Spark, the lake and every table at hand."""

from __future__ import annotations

from posthouse.cli.console import PLAIN, Output
from posthouse.cli.pipeline.place import HERE, Place

_BANNER = """posthouse pipeline shell: `spark` is the session, `lake` the lake, `sql("...")` a question.
Tables: {names}"""


def shell(*, place: Place = HERE, output: Output = PLAIN) -> None:
    """Open a Python shell in which every table is a DataFrame of its name.

    For example:

        posthouse pipeline shell
        echo 'silver_messages.count()' | posthouse pipeline shell --lake /data/lake
    """
    import code

    from posthouse.pipeline.query import refuse_empty
    from posthouse.pipeline.source.source import register_source

    lake = place.open_lake()
    refuse_empty(lake)
    spark = place.session()
    try:
        register_source(spark)
        names = lake.register(spark)
        known = {name: spark.table(name) for name in names}
        banner = _BANNER.format(names=", ".join(names))
        code.interact(banner=banner, local=known | {"spark": spark, "lake": lake, "sql": spark.sql}, exitmsg="")
    finally:
        spark.stop()
