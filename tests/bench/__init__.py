"""Benchmarks on the real stack: ``make bench`` prints them beside a peer or a limit measured in the same run."""
