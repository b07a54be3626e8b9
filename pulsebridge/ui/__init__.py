"""The live view: pages about a running installation, in a browser. Without Spark, and read-only without a token.

``snapshot`` reads Pulsar, tables and endpoints at an interval, on its own thread. The pages show its last snapshot.
"""
