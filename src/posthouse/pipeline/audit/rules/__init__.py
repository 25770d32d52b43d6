"""The rules of the audit, one module each."""
