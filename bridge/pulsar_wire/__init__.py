"""Pulsar's binary protocol as far as a writer of readings needs it: batches made here, one receipt for each."""
