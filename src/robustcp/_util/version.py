"""The version that is installed."""

from importlib import metadata as _metadata

try:
    __version__ = _metadata.version("robustcp")
except _metadata.PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0"
