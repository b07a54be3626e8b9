"""The front door: the command line, the local servers, the demo, the audit, and the notebooks' classes."""
