"""A clock that is days off, for the processes that get it: a library that is loaded first."""

from __future__ import annotations

import shutil
import subprocess
import sys

SOURCE = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void)
{
    const char *text = getenv("SHIFTED_CLOCK");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t which, struct timespec *found)
{
    int problem = syscall(SYS_clock_gettime, which, found);
    if (!problem && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE))
        found->tv_sec += shift();
    return problem;
}

int gettimeofday(struct timeval *found, void *zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}
"""


def lacking():
    """Return what this machine lacks for it, "" if nothing."""
    if sys.platform != "linux" or shutil.which("cc") is None:
        return "clocks are shifted on Linux, with a compiler of C"
    return ""


def off_by(days, folder):
    """Return the environment of processes whose clock is so many days ahead."""
    library = folder / "shifted_clock.so"
    if not library.exists():
        source = folder / "shifted_clock.c"
        source.write_text(SOURCE)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
        subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "SHIFTED_CLOCK": str(round(days * 86400))}
