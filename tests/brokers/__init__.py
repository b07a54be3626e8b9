"""``make brokers``: what ``pulsebridge check --broker`` finds at each broker, as the page docs/operate/brokers.md."""
