"""Run the command line: python -m intarsia."""

import sys

from intarsia.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
