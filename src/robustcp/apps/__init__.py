"""Applications: what some field does with a fit, from its files to its pictures."""
