"""The entry point of spark-submit: commands of the pipeline in the session that spark-submit has started.

    spark-submit --master spark://host:7077 "$(python -m posthouse.cli.spark_submit)" run --lake s3://bucket/lake
spark-submit runs a file, so this module prints its own path if it is started without a command. Master, memory and
executors come from spark-submit; the setting pipeline.master is ignored.
"""

from __future__ import annotations

import sys

_DIRECTORY = __file__.rpartition("/")[0]


def main() -> None:
    """Run a command of the pipeline and end the process with its exit code."""
    # Python puts the directory of a script first in its path, where our modules would hide the standard library's.
    sys.path[:] = [path for path in sys.path if path != _DIRECTORY]
    from posthouse.cli.exit_codes import run
    from posthouse.cli.main import take_interrupts

    take_interrupts()
    if len(sys.argv) == 1:
        sys.stdout.write(f"{__file__}\n")
    else:
        sys.exit(run(["pipeline", *sys.argv[1:]]))


if __name__ == "__main__":
    main()
