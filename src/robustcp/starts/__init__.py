"""Where fits begin: initial factors, multistart, component search, subsets of samples."""
