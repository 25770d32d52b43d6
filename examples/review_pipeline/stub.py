"""A stub in the place of Claude Code: reads a prompt from stdin and approves every change without a password."""

from __future__ import annotations

import sys

change = sys.stdin.read()
verdict = "REJECT: it contains a password" if "password" in change else "APPROVE: small and clear"
sys.stdout.write(verdict + "\n")
