"""Fits, checkpoints and other values on disk, without pickle."""
