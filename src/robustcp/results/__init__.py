"""The result of a fit, and what follows from it and its data."""
