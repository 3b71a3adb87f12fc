"""Run the command line: python -m intarsia, and the command `intarsia`."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current folder: no module of it is to be imported by its name


def main() -> int:
    """Run the command line and return the exit status; its imports can be stopped, too."""
    try:
        from intarsia.cli.main import main as run  # this is what must not come from there
    except KeyboardInterrupt:
        sys.stderr.write("stopped; give the same command again\n")
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
