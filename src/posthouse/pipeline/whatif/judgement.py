"""The judgement over a whole history, in Spark: senders first, then mailboxes, each key folded on a worker.

The folds are the product's own pure rules (posthouse.pipeline.whatif.sender and mailbox); the driver sees figures
only. A sender or a mailbox is one group and has to fit into a worker's memory: rows without payloads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from posthouse.pipeline.whatif.attempts import ATTEMPTS, CHANGES, attempts_of, boots_of, changes_of
from posthouse.pipeline.whatif.mailbox import Change, judge_mailbox
from posthouse.pipeline.whatif.proposal import Proposal
from posthouse.pipeline.whatif.sender import BOOTED, Attempt, attempt_of, judge_sender

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = ATTEMPTS.fieldNames()


@dataclass(frozen=True)
class Judgement:
    """What would have become of everything."""

    #: every attempt with `was` and `would`: a code, or NULL where it was or would be accepted
    attempts: DataFrame

    @property
    def accepted(self) -> DataFrame:
        """Accepted messages row by row; `would` is the code that would have refused one."""
        stored = self.attempts.where(f.col("kind") == "stored")
        return stored.select("store", "record", "id", "sender", "subject", "place", "created_ms", "would", "text")

    @property
    def refusals(self) -> DataFrame:
        """Refusals per code, key and minute: how many there were, and how many there would have been."""
        was = self.attempts.where(f.col("was").isNotNull()).select(
            f.col("was").alias("code"), _key("was"), "minute", f.col("was_times").alias("was"), f.lit(0).alias("would")
        )
        would = self.attempts.where(f.col("would").isNotNull()).select(
            f.col("would").alias("code"),
            _key("would"),
            "minute",
            f.lit(0).alias("was"),
            f.col("would_times").alias("would"),
        )
        both = was.unionByName(would).groupBy("code", "key", "minute")
        return both.agg(f.sum("was").alias("was"), f.sum("would").alias("would")).where("was + would > 0")


def judge_history(journal: DataFrame, proposal: Proposal) -> Judgement:
    """Judge a journal with a column `store`: rows of one store, of whichever epochs, in the order of seq."""
    attempts, changes, boots = attempts_of(journal), changes_of(journal), boots_of(journal)
    rated = _judge_senders(attempts, boots, proposal)
    is_left = f.col("would").isNull() & f.col("place").isNotNull()
    judged = _judge_mailboxes(rated.where(is_left), changes, boots, proposal)
    return Judgement(judged.unionByName(rated.where(~is_left)))


def _key(code: str) -> Any:
    subject = f.when(f.col(code) == "rate_limited", f.col("said_to")).otherwise(f.col("subject"))
    return f.concat_ws(" ", "sender", subject).alias("key")


def _judge_senders(attempts: DataFrame, boots: DataFrame, proposal: Proposal) -> DataFrame:
    rows = attempts.unionByName(_spread(boots, attempts.select("store", "sender").distinct()), allowMissingColumns=True)
    config = proposal.reliability.rate_limit

    def judge(group: pd.DataFrame) -> pd.DataFrame:
        records = _records(group)
        boots = [row["seq"] for row in records if row["kind"] == BOOTED]
        rows = [attempt_of(row) for row in records if row["kind"] != BOOTED]
        return _frame(judge_sender(rows, boots, config), _store(records))

    return _whole(rows).groupBy("store", "sender").applyInPandas(judge, ATTEMPTS)


def _judge_mailboxes(attempts: DataFrame, changes: DataFrame, boots: DataFrame, proposal: Proposal) -> DataFrame:
    rows = attempts.withColumn("is_attempt", f.lit(True))
    booted = _spread(boots, attempts.select("store", "place").distinct())
    for other in (changes, booted):
        rows = rows.unionByName(other.withColumn("is_attempt", f.lit(False)), allowMissingColumns=True)

    def judge(group: pd.DataFrame) -> pd.DataFrame:
        records = _records(group)
        tried = [attempt_of(row) for row in records if row["is_attempt"]]
        names = [name for name in CHANGES.fieldNames() if name not in ("store", "place")]
        changed = [Change(**{name: row[name] for name in names}) for row in records if not row["is_attempt"]]
        return _frame(judge_mailbox(tried, changed, proposal), _store(records))

    return _whole(rows).groupBy("store", "place").applyInPandas(judge, ATTEMPTS)


def _whole(rows: DataFrame) -> DataFrame:
    """Leave no NULL in a column of numbers: pandas would make it one of floats, too coarse for nanoseconds."""
    return rows.fillna(0, subset=sorted(_NUMBERS)).fillna(False, subset=["rated"])


def _spread(boots: DataFrame, keys: DataFrame) -> DataFrame:
    """Return a row for each boot and each key of its store: rules of every key forget what came before."""
    return boots.join(keys, "store").withColumn("kind", f.lit(BOOTED))


def _records(group: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as plain values; pandas' stand-ins for NULL become what the folds know."""
    return [{str(name): _plain(str(name), value) for name, value in row.items()} for row in group.to_dict("records")]


def _plain(name: str, value: Any) -> Any:
    is_missing = value is None or value != value  # NaN alone differs from itself
    if name in _NUMBERS:
        return 0 if is_missing else int(value)
    if name in ("rated", "is_attempt"):
        return False if is_missing else bool(value)
    return None if is_missing else value


_NUMBERS = {field.name for field in ATTEMPTS.fields if field.dataType.typeName() == "long"}


def _store(records: list[dict[str, Any]]) -> str:
    return str(records[0]["store"])


def _frame(rows: Iterator[Attempt], store: str) -> pd.DataFrame:
    import pandas as pd

    found = [asdict(row) | {"store": store} for row in rows]
    return pd.DataFrame(found, columns=_COLUMNS).astype(dict.fromkeys(sorted(_NUMBERS), "int64") if found else {})
