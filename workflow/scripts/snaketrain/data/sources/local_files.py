"""The files of a local folder or pattern. Each entry there is a file to be read, is left out for a reason that is told, or is refused."""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

EVERYTHING = ("**", "*")  # the pattern of a folder
MOST_SHOWN = 8

HIDDEN = "hidden, as its name begins with a dot"
COMPILED = "compiled code"
OTHER_CASE = "meets the pattern but for upper and lower case"
FOLDER = "a folder, whose files the pattern does not name (`**` does)"
READ_ELSEWHERE = "a link to a folder that is read under its own name"
SPECIAL = {stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket", stat.S_ISBLK: "a device", stat.S_ISCHR: "a device"}


@dataclass
class LocalFiles:
    files: dict[str, Path] = field(default_factory=dict)  # by the name relative to where the search begins
    left_out: dict[str, str] = field(default_factory=dict)  # the reason by name
    refused: dict[str, str] = field(default_factory=dict)  # what is wrong, by name


def find(base: Path, pattern: tuple[str, ...] = EVERYTHING) -> LocalFiles:
    """What meets a pattern below `base`, an absolute path. Links are followed, also those to folders."""
    walk = _Walk(base, (*pattern, "*") if pattern[-1] == "**" else pattern)
    walk.enter(base, ())
    walk.found.files = dict(sorted(walk.found.files.items(), key=lambda item: Path(item[0])))
    return walk.found


def problem_of(path: Path) -> str | None:
    """Why a path is no file that can be read, as a complete clause; None for a file and for a folder."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return _missing(path, error)
    return _special(mode) or (None if os.access(path, os.R_OK) else "you have no permission to read it")


def passed_over(name: str) -> str | None:
    """Why a name is passed over in a folder, unless a pattern spells its dot."""
    return HIDDEN if name.startswith(".") else COMPILED if name == "__pycache__" else None


class _Walk:
    def __init__(self, base: Path, pattern: tuple[str, ...]):
        self.base, self.pattern, self.found = Path(os.path.realpath(base)), pattern, LocalFiles()
        self.any_case = tuple(part.lower() for part in pattern)
        self.entered: set[Path] = set()

    def enter(self, folder: Path, above: tuple[str, ...]) -> None:
        self.entered.add(Path(os.path.realpath(folder)))
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: (entry.is_symlink(), entry.name))  # links last: own names come first
        except OSError as error:
            self.found.refused["/".join(above) or str(folder)] = f"a folder that cannot be listed: {error.strerror}"
            return
        for entry in entries:
            self._take(Path(entry.path), (*above, entry.name))

    def _take(self, path: Path, names: tuple[str, ...]) -> None:
        name, wanted = "/".join(names), _meets(self.pattern, names)
        may_be_folder = path.is_dir() or not path.exists()  # a broken link could have led to one
        leads_on = may_be_folder and _may_lead_to(self.pattern, names)
        if not wanted and not leads_on:
            lower = tuple(map(str.lower, names))
            if _meets(self.any_case, lower) or (may_be_folder and _may_lead_to(self.any_case, lower)):
                self.found.left_out[name] = OTHER_CASE
        elif reason := self._passed_over(names[-1]):
            self.found.left_out[name] = reason
        elif not _is_unicode(name):
            self.found.refused[name] = "a name that is not UTF-8"
        elif path.is_dir():
            self._take_folder(path, names, leads_on)
        elif special := _special(path.stat().st_mode) if path.exists() else None:
            self.found.left_out[name] = special
        elif problem := problem_of(path):
            self.found.refused[name] = problem
        elif wanted:
            self.found.files[name] = path

    def _take_folder(self, path: Path, names: tuple[str, ...], leads_on: bool) -> None:
        target, name = Path(os.path.realpath(path)), "/".join(names)
        if not leads_on:
            self.found.left_out[name] = FOLDER
        elif target in self.entered or (path.is_symlink() and self._is_entered_later(target)):
            self.found.left_out[name] = READ_ELSEWHERE
        elif self.base.is_relative_to(target):
            self.found.refused[name] = f"a link to {target}, which contains the folder that is read"
        else:
            self.enter(path, names)

    def _passed_over(self, name: str) -> str | None:
        spelt = any(part.startswith((".", "__")) and fnmatchcase(name, part) for part in self.pattern)
        return None if spelt else passed_over(name)

    def _is_entered_later(self, target: Path) -> bool:
        if not target.is_relative_to(self.base):
            return False
        names = target.relative_to(self.base).parts
        return _may_lead_to(self.pattern, names) and not any(map(self._passed_over, names))


def _meets(pattern: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Whether the path of an entry, in its parts, meets a pattern, in which `**` means any folders."""
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_meets(pattern[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _meets(pattern[1:], names[1:])


def _may_lead_to(pattern: tuple[str, ...], names: tuple[str, ...]) -> bool:
    """Whether a folder may contain what meets a pattern."""
    for part, name in zip(pattern, names, strict=False):
        if part == "**":
            return True
        if not fnmatchcase(name, part):
            return False
    return len(names) < len(pattern)


def _special(mode: int) -> str | None:
    return next((f"{kind}, not a file" for is_kind, kind in SPECIAL.items() if is_kind(mode)), None)


def _missing(path: Path, error: OSError) -> str:
    if path.is_symlink() and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return f"a link to {os.readlink(path)}, which does not exist"
    if error.errno == errno.ELOOP:
        return "a link that leads back to itself"
    return f"cannot be read: {error.strerror}"


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def counted(left_out: dict[str, str]) -> dict[str, list[str]]:
    """The names of what was left out, by reason."""
    found: dict[str, list[str]] = {}
    for name, reason in sorted(left_out.items()):
        found.setdefault(reason, []).append(name)
    return found


def told(left_out: dict[str, str]) -> Iterator[str]:
    """A line for each reason, with the number of entries and the first names."""
    for reason, names in counted(left_out).items():
        more = f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
        yield f"{len(names)} left out: {', '.join(map(repr, names[:MOST_SHOWN]))}{more}: {reason}"
