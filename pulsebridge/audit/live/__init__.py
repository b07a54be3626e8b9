"""The live audit: compares Pulsar and the tables of any deployment while it runs. docs/operate/audit.md says how to use it."""
