"""Messages over HTTP: ``POST /topics/{mqtt topic}?qos=1``, answered when Pulsar has them. Needs the extra ``http``."""
