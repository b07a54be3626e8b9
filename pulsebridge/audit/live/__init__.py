"""The live audit: compares Pulsar and the tables of any deployment while it runs. AUDIT.md says how to use it."""
