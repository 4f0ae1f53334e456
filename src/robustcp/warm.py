"""`python -m robustcp.warm`: compile ahead of time, so that the first fit need not."""

from robustcp.cli.warm_command import main

if __name__ == "__main__":
    main()
