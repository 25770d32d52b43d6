"""The routes of the local interface, one file per thing they are about."""
