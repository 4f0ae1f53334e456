"""The objective, its updates and the one loop that minimises it."""
