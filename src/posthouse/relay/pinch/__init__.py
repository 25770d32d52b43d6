"""The Pinch protocol: existing Pinch agents use this relay unchanged; envelopes go through the relay's queues."""
