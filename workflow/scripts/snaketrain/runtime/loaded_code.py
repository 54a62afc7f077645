"""What the user's own code in this process consists of and reads, so that a change of it makes the result stale.

Recorded is what happened, not what the source suggests: modules that were imported, files that own code opened, and environment
variables that it read. The packages that it imports are listed with their versions.
"""

import ast
import functools
import hashlib
import os
import site
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from types import CodeType, FrameType

from snaketrain import own
from snaketrain.runtime.manifests import DigestCache, content_digest, digest, stamp_of
from snaketrain.runtime.secret_forms import is_secret_name

LIBRARY = f"{own.LIBRARY}{os.sep}"
OURS = ("results", "logs", "mlruns")  # in the working directory: what the workflow and MLflow write
MANY = 100  # files of one folder, above which the folder is recorded with their sizes and times, instead of each with its content
RECORDED = "("  # begins the name of what a stage is known to load only after it has run
ABSENT, UNSTEADY = "absent", "changed while it was read"
# launchers and shells set these, differently for each process or host
OF_THE_PLACE = ("SLURM_", "PMI_", "PMIX_", "OMPI_", "PALS_", "PBS_", "TORCHELASTIC_", "CUDA_VISIBLE_", "SNAKETRAIN_", "XDG_", "SSH_", "LC_")
# ours, which torch and Snakemake import from whichever checkout is installed
OUR_MODULES = {"snaketrain", "snakemake_executor_plugin_slurm_steady", "snakemake_logger_plugin_snaketrain", "torchrun_handlers"}
OF_THE_PROCESS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE",
                  "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "HOME", "USER", "LOGNAME", "PATH", "PWD", "OLDPWD", "SHELL", "SHLVL", "TERM", "TMPDIR", "TMP", "TEMP",
                  "HOSTNAME", "DISPLAY", "COLUMNS", "LINES", "LANG", "_"}  # fmt: skip

_opened: dict[str, dict[str, list[int] | None]] = {}  # folder -> file -> its stamp when it was first read
_listed: set[str] = set()  # folders of which the names of all that is in them count
_written: set[str] = set()  # files that this process wrote itself
_updated: set[str] = set()  # files that it opened to read and to write, as numpy.memmap does: inputs, unless they are written
_ran: dict[str, list[int] | None] = {}  # own files that were run as modules -> their stamps then
_variables: dict[str, str] = {}  # environment variables -> digest of what own code saw
_named: set[str] = set()  # installed packages that the configuration names


def loaded_files(cache: DigestCache | None = None) -> dict[str, str]:
    """The digests of own modules that were imported, own files that they read (folders where many) and, as `$NAME`, environment variables.

    The names are relative to the working directory for what is below it. Of code, neither comments nor docstrings or layout count.
    """
    found = {_named_here(path): digest_of_source(source) for path, source in own.sources.copy().items()}
    for path in _plain_modules():
        found.setdefault(_named_here(path), digest_now(path) if path not in _ran or stamp_of(path) == _ran[path] else UNSTEADY)
    for folder, files in _opened.copy().items():
        if len(files) > MANY:
            found[_named_here(folder) + "/"] = digest_now(f"{folder}/")
        for path, before in files.copy().items() if len(files) <= MANY else ():
            changed = stamp_of(path) != before
            if path not in _written and not (changed and path in _updated):
                found.setdefault(_named_here(path), UNSTEADY if changed else digest_now(path, cache))
    found |= {(name := f"{_named_here(folder)}/*"): digest_now(name) for folder in _listed}
    return dict(sorted((found | _variables).items()))


def changed_files(recorded: Mapping[str, str], cache: DigestCache | None = None) -> dict[str, str]:
    """What happened to files and variables that `loaded_files` has recorded, such as `has changed`; empty if nothing did."""
    found = {}
    for name, before in recorded.items():
        now = digest_now(name, cache)
        if now != before:
            found[name] = "is missing" if now == ABSENT else "is new" if before == ABSENT else "has changed"
    return found


def with_recorded(recorded: Mapping[str, str], changed: Iterable[str]) -> dict[str, str]:
    """`(file)` and its digest for what the digests of a plan do not cover; `changed`: the names of what has changed.

    A result that is made again because of such a change thereby has another identity than the one before.
    """
    return {**recorded, **{f"{RECORDED}{name})": digest_now(name) for name in changed}}


def imported_packages() -> dict[str, str]:
    """The version of each installed package that own code imports or the configuration names."""
    found: dict[str, str] = {}
    sources = [*own.sources.copy().values(), *(Path(path).read_bytes() for path in _plain_modules() if path.endswith(".py"))]
    names = {name for source in sources for name in _imported(source)} | _named
    for name in sorted(names & set(sys.modules) - set(sys.stdlib_module_names) - {"snaketrain"}):
        if (file := getattr(sys.modules[name], "__file__", None)) and not is_own(file):
            found |= {each: metadata.version(each) for each in _distributions(name)}
    return dict(sorted(found.items()))


def watch(package: str | None = None) -> None:
    """Record from now on; `package`: an installed one that the configuration names."""
    if package:
        _named.add(package)
    _install()


def count_as_read(*paths: str) -> None:
    """Files that this library reads where the user's code could have read them."""
    for name in map(os.path.abspath, paths):
        files = _opened.setdefault(os.path.dirname(name), {})
        if name not in files and len(files) <= MANY:
            files[name] = stamp_of(name)


def count_as_listed(folder: str) -> None:
    """What is in it decides a result, such as which images there are."""
    _listed.add(os.path.abspath(folder))


# --- digests


def digest_now(name: str, cache: DigestCache | None = None) -> str:
    """Of a file, of the files in a folder (`folder/`), of all names in it (`folder/*`), or of an environment variable (`$NAME`)."""
    if name.startswith("$"):
        return _of_value(os.environ.get(name[1:]))
    try:
        if name.endswith("/*"):
            return digest(sorted(entry for entry in os.listdir(name[:-1]) if not entry.startswith(".")))
        if name.endswith("/"):
            files = (entry for entry in os.scandir(name) if entry.is_file())
            return digest(sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in files))
        read, key = (_of_code, f"{name} as code") if name.endswith(".py") else (content_digest, name)
        return str(cache.of(Path(name), read, key)) if cache else read(Path(name))
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT
    except OSError as error:
        return f"cannot be read ({error.strerror})"


@functools.lru_cache(maxsize=1024)
def digest_of_source(source: str | bytes) -> str:
    """The same for code that does the same: without comments, docstrings, layout, and imports for the type checker."""
    try:
        return digest_of_tree(ast.parse(source))
    except (SyntaxError, ValueError):  # a template, for example, that own code reads
        return hashlib.sha256(source.encode() if isinstance(source, str) else source).hexdigest()[:12]


def digest_of_tree(tree: ast.Module) -> str:
    """Changes the tree."""
    return hashlib.sha256(ast.unparse(what_runs(tree)).encode()).hexdigest()[:12]


def what_runs(tree: ast.Module) -> ast.Module:
    """Without docstrings, and without what only a type checker sees. Changes the tree."""
    for node in ast.walk(without_type_checking(tree)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def without_type_checking(tree: ast.Module) -> ast.Module:
    """Without what is never run."""
    tree.body = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    return tree


def _of_code(path: Path) -> str:
    return digest_of_source(path.read_bytes())


def _of_value(value: str | None) -> str:
    return ABSENT if value is None else hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()[:12]


# --- what is the user's


@functools.cache
def is_own(path: str) -> bool:
    """Whether code is the user's: neither of this library, nor of Python, nor installed."""
    return os.path.isabs(path) and not path.startswith((LIBRARY, *_installed()))


@functools.cache
def _installed() -> tuple[str, ...]:
    places = [*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages(), site.getusersitepackages()]
    if sys.prefix != sys.base_prefix:
        places.append(sys.prefix)
    return tuple(sorted({f"{path}{os.sep}" for place in places for path in (place, os.path.realpath(place))}))


def _plain_modules() -> Iterator[str]:
    """Own modules that `own` has not compiled: found by PYTHONPATH, installed in editable mode, of C, or run by own code; not the script itself."""
    loaded = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    run = [file for file in _ran if file not in loaded.values() and _may_hold_inputs(os.path.dirname(file), os.getcwd(), len(own.sources))]
    for file in dict.fromkeys([*(file for name, file in loaded.items() if _is_of_user(name, loaded)), *run]):
        if not isinstance(file, str) or file in own.sources or not is_own(file):
            continue
        if not any(part.startswith(".") for part in Path(_named_here(file)).parts):  # such as a cache of downloaded code
            yield file


def _is_of_user(name: str, loaded: Mapping[str, object]) -> bool:
    """Whether a module's package may be the user's; torch's compiler names what it generates as modules of torch, or of packages that do not exist."""
    package = name.partition(".")[0]
    if package in OUR_MODULES or package in ("__main__", "__mp_main__"):
        return name.startswith(f"{own.__name__}.")
    return package in loaded and not (isinstance(file := loaded[package], str) and not is_own(file))


def _named_here(path: str) -> str:
    here = os.getcwd()
    return os.path.relpath(path, here) if path.startswith(here + os.sep) else path


@functools.lru_cache(maxsize=4096)
def _may_hold_inputs(folder: str, here: str, known: int) -> bool:
    """Whether results may depend on files there: below the working directory or own code; not ours, hidden or installed.

    `known`: the number of own files, since each may add a folder.
    """
    roots = {here, *map(os.path.dirname, own.sources)}
    below = [os.path.relpath(folder, root).split(os.sep) for root in roots if f"{folder}/".startswith(f"{root}/")]
    if not below or f"{folder}/".startswith((LIBRARY, *_installed(), *(f"{here}/{each}/" for each in OURS))):
        return False
    return not any(part == "__pycache__" or (part.startswith(".") and part != ".") for part in min(below, key=len))


# --- watching


@functools.cache
def _install() -> None:
    sys.addaudithook(_hear)
    original = os._Environ.__getitem__

    def getitem(self: "os._Environ[str]", key: str) -> str:
        try:
            value = original(self, key)
        except KeyError:
            _see_variable(key, None)
            raise
        _see_variable(key, value)
        return value

    setattr(os._Environ, "__getitem__", getitem)  # noqa: B010 - os.getenv, .get and `in` all come here


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    with suppress(Exception):  # what cannot be recorded can still be used
        if event == "open":
            _see_open(*arguments)
        elif event == "exec" and isinstance(code := arguments[0], CodeType) and code.co_name == "<module>" and is_own(code.co_filename):
            _ran.setdefault(code.co_filename, stamp_of(code.co_filename))  # also if Python had it compiled, and does not open it


def _see_open(path: object, mode: object, flags: object) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.path.abspath(os.fsdecode(path))
    folder, file = os.path.split(name)
    if file.startswith(".") or not _may_hold_inputs(folder, os.getcwd(), len(own.sources)):
        return
    if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
        _written.add(name)
        return
    if isinstance(flags, int) and flags & os.O_RDWR:
        _updated.add(name)
    files, special = _opened.get(folder, {}), os.path.exists(name) and not os.path.isfile(name)  # a folder, a pipe or a device
    if name not in files and len(files) <= MANY and not special and _called_by_own_code(sys._getframe(2)):
        _opened.setdefault(folder, {})[name] = stamp_of(name)


def _called_by_own_code(frame: FrameType | None) -> bool:
    """Whether own code is the nearest caller, apart from other packages.

    The stack of a thread does not reach the code that started it: there a file counts unless a package is seen to read it.
    """
    while frame is not None:
        file = frame.f_code.co_filename
        if (file.startswith(LIBRARY) and file != __file__) or frame.f_globals.get("__name__") == "linecache":  # which reads for tracebacks
            return False
        if is_own(file):
            return True
        frame = frame.f_back
    return threading.current_thread() is not threading.main_thread()


def _see_variable(name: object, value: str | None) -> None:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
        frame = frame.f_back
    if not is_own(frame.f_code.co_filename) or not isinstance(name, str) or f"${name}" in _variables:
        return
    if name not in OF_THE_PROCESS and not name.startswith(OF_THE_PLACE) and not is_secret_name(name, value or ""):
        _variables[f"${name}"] = _of_value(value)


# --- packages


@functools.lru_cache(maxsize=256)
def _imported(source: bytes) -> frozenset[str]:
    """The top-level names that a file imports, wherever it does."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return frozenset(found)


@functools.cache
def _distributions(module: str) -> list[str]:
    try:
        return [metadata.distribution(module).name]
    except metadata.PackageNotFoundError:
        return sorted(set(_distributions_of_modules().get(module, [])))


@functools.cache
def _distributions_of_modules() -> Mapping[str, list[str]]:
    """Takes most of a second, since the files of all packages are listed."""
    return metadata.packages_distributions()
