"""The last step of every campaign that leaves a store behind: the pipeline's audit of all of its stores together.

A sample (`make sample`) runs the rules in this process, which costs a fraction of a second; the whole campaign
(`make faults`) has Spark read the same files and judge them once more. A finding is a sentence.
"""

from __future__ import annotations

import os
from pathlib import Path

from posthouse.pipeline.audit.finding import Finding
from posthouse.pipeline.audit.stores import audit_stores, kind_of


def audit_findings(*paths: Path) -> list[str]:
    """Return what the audit finds in some stores."""
    found = audit_stores(*paths)
    if os.environ.get("POSTHOUSE_FAULTS") == "full":
        found += _audit_on_spark(paths)
    return [f"audit: {finding.code} {finding.store} {finding.seq} {finding.ref}: {finding.detail}" for finding in found]


def _audit_on_spark(paths: tuple[Path, ...]) -> list[Finding]:
    from posthouse.pipeline.audit.audit import audit
    from posthouse.pipeline.connector.source_access import Access
    from posthouse.pipeline.session import spark_session

    sources = [Access(str(path)) for path in paths if kind_of(path) != "journal"]  # those have no feeds
    if not sources:
        return []
    spark = spark_session("local[2]", shuffle_partitions=4)  # one for all campaigns of this process
    return audit(spark, None, sources).findings
