"""Locks: leases with fencing tokens, decided by the one writer, waited for in order, replayed from the journal."""
