"""The pipeline in Spark: declared tables in Delta Lake, views, quarantine, suites, alerts and upkeep."""
