"""Payloads that Spark itself cannot read, decoded by Python workers within limits of time, memory and output."""
