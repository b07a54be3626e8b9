"""Downloads from Maven Central through Ivy, with checksums and a cache."""
