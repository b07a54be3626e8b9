"""The Spark jobs: bronze, silver and quarantine tables in Delta Lake, and alert rules."""
