"""The launchd agent of a daemon.

launchd cannot be told which exit codes not to restart after, so a shell around the daemon turns exit code 4 (identity)
into success, after which launchd lets it rest.
"""

from __future__ import annotations

import plistlib
import shlex

from posthouse.cli.daemon.service import ServiceTerms
from posthouse.model.codes.spec import Exit


def launchd_plist(terms: ServiceTerms) -> str:
    """Return the text of the property list."""
    script = f'{shlex.join(terms.command)}; code=$?; [ "$code" -eq {int(Exit.IDENTITY)} ] && exit 0; exit "$code"'
    agent = {
        "Label": terms.name,
        "ProgramArguments": ["/bin/sh", "-c", script],
        "EnvironmentVariables": dict(terms.environment),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ProcessType": "Background",
        "Umask": 0o077,
        "HardResourceLimits": {"Core": 0},
    }
    return plistlib.dumps(agent).decode()
