"""The rules of the audit, a file each."""
