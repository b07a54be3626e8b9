"""Read-only views of an installation: they use readers and sessions separate from those of the tiers."""
