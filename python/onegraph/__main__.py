"""`python -m onegraph`: the command line."""

import sys

from onegraph.cli import main

if __name__ == "__main__":
    sys.exit(main())
