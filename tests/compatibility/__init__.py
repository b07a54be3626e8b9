"""Which versions of Python, Java and Spark were tried: ``make compatibility`` runs, ``results`` keeps, a page shows."""
