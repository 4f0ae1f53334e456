"""`python -m robustcp`."""

from robustcp.cli import main

main()
