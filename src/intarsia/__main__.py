"""Run the command line: python -m intarsia."""

import sys

from intarsia.cli import main

if __name__ == "__main__":
    sys.exit(main())
