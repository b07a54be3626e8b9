"""``make brokers``: what ``pulsebridge check --broker`` finds at each broker, as the page BROKERS.md."""
