"""Trust: pinned keys, and signing, sealing and verifying events."""
