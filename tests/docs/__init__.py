"""Pages of the documentation that are generated from the code: ``python -m tests.docs`` writes them."""
