"""`python -m rackline`: the same as the command `rackline`."""

import sys

from rackline.cli.entry import run

if __name__ == "__main__":
    sys.exit(run())
