"""Several relays on one store: membership, the leader, and what the relays send each other."""
