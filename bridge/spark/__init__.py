"""Code that both Spark tiers share. It does not import pyspark."""
