"""`python -m desktop`: the same entry point as the installed `inglenook`."""

import sys

from desktop.cli import main

if __name__ == "__main__":
    sys.exit(main())
