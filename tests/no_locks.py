"""A folder on a file system without locks, such as Lustre mounted without `flock`, for processes that a test starts.

A preloaded library makes `flock` and the locks of `fcntl`, which SQLite uses, fail there as the kernel does.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int refused(int file) {
    const char *folder = getenv("NO_LOCKS_IN"), *code = getenv("NO_LOCKS_ERRNO");
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!folder || !code || length < 0) return 0;
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder))) return 0;
    errno = atoi(code);
    return 1;
}

int flock(int file, int operation) {
    static int (*real)(int, int);
    if (!real) real = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
    return refused(file) ? -1 : real(file, operation);
}

static int locks(int command) {
    return command == F_GETLK || command == F_SETLK || command == F_SETLKW
        || command == F_OFD_GETLK || command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

#define REPLACED(name)                                                       \
    int name(int file, int command, ...) {                                   \
        static int (*real)(int, int, ...);                                   \
        va_list more;                                                        \
        va_start(more, command);                                             \
        void *argument = va_arg(more, void *);                               \
        va_end(more);                                                        \
        if (!real) real = (int (*)(int, int, ...))dlsym(RTLD_NEXT, #name);   \
        return locks(command) && refused(file) ? -1 : real(file, command, argument); \
    }
REPLACED(fcntl)
REPLACED(fcntl64)
"""


def environment(folder: Path, code: int, library_folder: Path) -> dict[str, str]:
    """The environment of a process for which locks in `folder` fail with this errno."""
    if not (compiler := shutil.which("cc")):
        pytest.skip("no C compiler")
    library = library_folder / "no_locks.so"
    if not library.exists():
        words = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
        subprocess.run(words, input=SOURCE, text=True, check=True)
    return os.environ | {"LD_PRELOAD": str(library), "NO_LOCKS_IN": str(folder), "NO_LOCKS_ERRNO": str(code)}
