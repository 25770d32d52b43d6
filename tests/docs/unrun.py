"""Blocks of `console` or `python` that are not run, and why. Everything else in these languages is run."""

from __future__ import annotations

from tests.docs.pages import blocks_of

_SPARK = "docs/how-to/pipeline-spark.md"
#: Page -> first line of the block's body -> reason.
UNRUN: dict[str, dict[str, str]] = {
    _SPARK: {
        block.body.splitlines()[0]: "tests/pipeline/connector/test_how_to.py runs it in the session of the tests"
        for block in blocks_of(_SPARK)
    }
}
