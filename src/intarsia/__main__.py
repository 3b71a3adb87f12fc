"""Run the command line: python -m intarsia, and the command `intarsia`."""

import os
import resource
import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current folder: no module of it is to be imported by its name


def main() -> int:
    """Run the command line and return the exit status; its imports can be stopped, too."""
    _open_standard_streams()
    _spare_memory()
    try:
        from intarsia.cli.main import main as run  # this is what must not come from there
    except KeyboardInterrupt:
        sys.stderr.write("stopped; give the same command again\n")
        return 130
    return run()


def _spare_memory() -> None:
    """Let BLAS libraries have one thread where the system limits what this process maps.

    They map some 75 MB for each thread, used or not, when they are imported.
    """
    limits = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_DATA, resource.RLIMIT_AS))
    if any(one != resource.RLIM_INFINITY for one in limits):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _open_standard_streams() -> None:
    """Open what the process was started without: else a file of ours gets its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


if __name__ == "__main__":
    sys.exit(main())
