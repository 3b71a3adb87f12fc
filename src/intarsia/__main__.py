"""Run the command line: python -m intarsia."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current folder: no module of it is to be imported by its name

from intarsia.cli.main import main  # this is what must not come from there

if __name__ == "__main__":
    sys.exit(main())
