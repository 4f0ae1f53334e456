"""Data in pieces: chunks, tables in parts, slabs that pass over a device; who works on them."""
