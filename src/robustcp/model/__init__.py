"""CP models: Kruskal tensors, how alike two of them are, simulated data."""
