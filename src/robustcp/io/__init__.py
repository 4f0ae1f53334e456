"""Tensors from files, and maps of fits as NIfTI images; for fits in files see `persist`."""
