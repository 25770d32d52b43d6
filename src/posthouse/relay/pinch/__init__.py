"""The Pinch wire: existing Pinch agents use this relay unchanged, over the deliveries every message goes through."""
