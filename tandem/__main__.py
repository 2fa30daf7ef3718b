"""`python -m tandem` is the command line."""

import sys

from tandem.cli import main

if __name__ == "__main__":
    sys.exit(main())
