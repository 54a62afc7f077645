"""Own files import what is beside them, and what they load and read is recorded. Each test starts a process of its own."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import markupsafe._speedups
import pytest

from snaketrain.orchestration.code_digest import SCRIPTS
from snaketrain.runtime.loaded_code import digest_now
from snaketrain.runtime.manifests import DigestCache, content_digest


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def python(folder, program, **environment):
    """The JSON that a program prints last; it has `load`, `loaded_files`, `imported_packages` and `changed_files`."""
    names = "from snaketrain.config.references import load\nfrom snaketrain.runtime.loaded_code import *\nimport json\n"
    (folder / "main.py").write_text(names + textwrap.dedent(program))
    given = {**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTHONDONTWRITEBYTECODE": "", **environment}
    done = subprocess.run([sys.executable, "main.py"], cwd=folder, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


TWO = {
    "a/code_a.py": """
        from helper import WHO
        def who(_=None):
            import helper
            return [WHO, helper.WHO]
    """,
    "a/helper.py": "WHO = 'a'",
    "b/code_b.py": """
        import helper as mine
        def who(_=None):
            from helper import WHO
            return [mine.WHO, WHO]
    """,
    "b/helper.py": "WHO = 'b'",
}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_folders_each_have_their_own_helper_also_in_worker_processes(tmp_path, method):
    write(tmp_path, TWO)
    program = f"""
        import multiprocessing
        if __name__ == "__main__":
            a, b = load("a/code_a.py:who"), load("b/code_b.py:who")
            with multiprocessing.get_context("{method}").Pool(1) as pool:
                print(json.dumps([a(), b(), *pool.map(a, [0]), *pool.map(b, [0]), list(loaded_files())]))
    """
    of_a, of_b, files = ["a", "a"], ["b", "b"], ["a/code_a.py", "a/helper.py", "b/code_b.py", "b/helper.py"]
    assert python(tmp_path, program) == [of_a, of_b, of_a, of_b, files]


def test_packages_and_relative_imports_beside_own_code_are_found_and_recorded(tmp_path):
    write(tmp_path, {
        "my-code/task.py": """
            from mylib.utils import g
            import mylib.deep.er
            import mylib.other as other, json
            from . import rel
            def values():
                return [g(), mylib.deep.er.X, other.Y, rel.Z, mylib.Q, json.loads("1")]
        """,
        "my-code/mylib/__init__.py": "from . import inner\nQ = inner.P + 1",
        "my-code/mylib/inner.py": "P = 3",
        "my-code/mylib/utils.py": "def g():\n    from .inner import P\n    return P",
        "my-code/mylib/deep/__init__.py": "",
        "my-code/mylib/deep/er.py": "from mylib.inner import P as X",
        "my-code/mylib/other.py": "Y = 5",
        "my-code/rel.py": "Z = 6",
        "my-code/unused.py": "",
    })  # fmt: skip
    program = """print(json.dumps([load("my-code/task.py:values")(), list(loaded_files())]))"""
    values, files = python(tmp_path, program)
    assert values == [3, 3, 5, 6, 4, 1]
    assert files == sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("my-code/**/*.py") if path.name != "unused.py")


def test_a_helper_with_the_name_of_an_installed_package_is_the_file_beside_own_code_and_only_for_it(tmp_path):
    write(tmp_path, {"task.py": "import yaml, json\nMINE = [yaml.__file__, json.__file__]", "yaml.py": "", "json/notes.txt": ""})
    mine, everybody, files, packages = python(
        tmp_path, 'mine = load("task.py:MINE")\nimport yaml\nprint(json.dumps([mine, yaml.__file__, list(loaded_files()), imported_packages()]))',
        PYTHONPATH=f"{SCRIPTS}",
    )  # fmt: skip
    assert mine[0] == str(tmp_path / "yaml.py") and mine[1].endswith("json/__init__.py")
    assert files == ["task.py", "yaml.py"] and packages == {}


def test_files_and_variables_that_own_code_reads_are_recorded(tmp_path):
    write(tmp_path, {
        "task.py": """
            import os, pathlib
            def read():
                pathlib.Path("words/list.txt").read_text()
                open("results/earlier.txt").read()
                with open("made.txt", "w") as file:
                    file.write("1")
                open("made.txt").read()
                try:
                    open("optional.yaml")
                except FileNotFoundError:
                    pass
                for number in range(150):
                    open(f"images/{number}").close()
                return os.environ["MY_SIZE"], os.getenv("MY_OTHER"), os.environ.get("RANK"), os.getenv("MY_API_TOKEN")
        """,
        "words/list.txt": "a b",
        "results/earlier.txt": "",
        **{f"images/{number}": "" for number in range(150)},
    })  # fmt: skip
    program = """
        import os
        load("task.py:read")()
        open("words/unread.txt", "w").close(), open("words/unread.txt").close()
        found = loaded_files()
        print(json.dumps([list(found), changed_files(found)]))
        open("words/list.txt", "a").write("c"), os.remove("images/3"), open("optional.yaml", "w").close()
        os.environ["MY_SIZE"] = "3"
        open("task.py", "a").write("# a remark")
        changed = changed_files(found)
        os.remove("words/list.txt")
        print(json.dumps([list(found), changed, changed_files(found)["words/list.txt"]]))
    """
    names, changed, then = python(tmp_path, program, MY_SIZE="2", MY_API_TOKEN="hf_0123456789")
    assert names == ["$MY_OTHER", "$MY_SIZE", "images/", "optional.yaml", "task.py", "words/list.txt"]
    assert changed == {"$MY_SIZE": "has changed", "images/": "has changed", "optional.yaml": "is new", "words/list.txt": "has changed"}
    assert then == "is missing"


COMPILED = Path(markupsafe._speedups.__file__)
READS = {  # what own code does -> what is recorded, besides its own file
    "import numpy as np\ndef read(): np.memmap('words.bin', dtype='uint8')[0]": "words.bin",
    "def read():\n    with open('words.bin', 'r+b') as file: file.read()": "words.bin",
    "from concurrent.futures import ThreadPoolExecutor\nimport pathlib\n"
    "def read(): list(ThreadPoolExecutor(1).map(pathlib.Path.read_bytes, [pathlib.Path('words.bin')]))": "words.bin",
    "import os\ndef read(): os.environ.get('LOCAL_FACTOR'), os.environ.get('LOCAL_RANK'), os.environ.get('MASTER_PORT')": "$LOCAL_FACTOR",
    "import _speedups\ndef read(): pass": COMPILED.name,
    "import importlib.util as i\ndef read():\n    spec = i.spec_from_file_location('any', 'helper.py')\n"
    "    spec.loader.exec_module(i.module_from_spec(spec))": "helper.py",
}


@pytest.mark.parametrize("code", READS)
def test_what_own_code_loads_by_other_ways_is_recorded(tmp_path, code):
    """Also the second time, when Python has kept the bytecode of a module."""
    write(tmp_path, {"task.py": code, "words.bin": "abc", "helper.py": "X = 1"})
    shutil.copy(COMPILED, tmp_path)
    for _ in range(2):
        assert python(tmp_path, 'load("task.py:read")()\nprint(json.dumps(list(loaded_files())))') == sorted([READS[code], "task.py"])


def test_code_that_a_compiler_generates_is_not_the_users(tmp_path):
    """It is registered as torch does it, and would be missing on another machine."""
    write(tmp_path, {"cache/made.py": "X = 1", "work/task.py": """
        import importlib.util, pathlib, sys
        def read():
            for name in ("json.made", "abc.kernel"):
                spec = importlib.util.spec_from_file_location(name, pathlib.Path("../cache/made.py").resolve())
                sys.modules[name] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[name])
    """})  # fmt: skip
    assert python(tmp_path / "work", 'load("task.py:read")()\nprint(json.dumps(list(loaded_files())))') == ["task.py"]


def test_a_file_that_own_code_updates_is_no_input(tmp_path):
    write(
        tmp_path,
        {"task.py": "def read():\n    with open('count.txt', 'r+') as file: file.write(str(int(file.read() or 0) + 1))", "count.txt": "1"},
    )
    assert python(tmp_path, 'load("task.py:read")()\nprint(json.dumps(list(loaded_files())))') == ["task.py"]


def test_a_module_of_an_editable_package_that_was_edited_after_its_import_is_not_what_was_loaded(tmp_path):
    write(tmp_path, {"task.py": "from mypackage import SIZE\ndef read(): return SIZE", "src/mypackage.py": "SIZE = 1"})
    program = """
        load("task.py:read")()
        before = changed_files(loaded_files())
        open("src/mypackage.py", "w").write("SIZE = 22")
        print(json.dumps([before, changed_files(loaded_files())]))
    """
    assert python(tmp_path, program, PYTHONPATH=f"{SCRIPTS}:{tmp_path}/src") == [{}, {"src/mypackage.py": "has changed"}]


def test_what_an_earlier_attempt_has_loaded_counts_for_a_resumed_training(tmp_path):
    """Also what was changed between two of its checkpoints, and what its last attempt does not load again."""
    write(tmp_path, {"task.py": "def read(name): return open(name).read()", "first.txt": "a", "changed.txt": "a", "training/.keep": ""})
    of_training = "from pathlib import Path\nfrom snaketrain.runtime.run_folder import *\nrecord = recorder_of_loaded(Path('training'))\n"
    program = """
        read = load("task.py:read")
        read("first.txt"), read("changed.txt")
        record({"event": "checkpoint"})
        open("changed.txt", "w").write("another")
        read("changed.txt")
        record({"event": "checkpoint"})
        print(json.dumps(changed_files(loaded_by(Path("training")))))
    """
    assert python(tmp_path, of_training + textwrap.dedent(program)) == {"changed.txt": "has changed"}
    program = """
        load("task.py:read")
        record({"event": "checkpoint"})
        print(json.dumps(sorted(loaded_so_far(Path("training")))))
    """
    assert python(tmp_path, of_training + textwrap.dedent(program)) == ["changed.txt", "first.txt", "task.py"]


def test_the_packages_that_own_code_imports_are_recorded_with_their_versions(tmp_path):
    from importlib.metadata import version

    write(
        tmp_path,
        {"task.py": "import os\nfrom packaging import version as v\nfrom helper import t", "helper.py": "from yaml import safe_load as t"},
    )
    program = 'load("task.py:v"), load("jinja2.Template")\nprint(json.dumps(imported_packages()))'
    assert python(tmp_path, program) == {name: version(name) for name in ("Jinja2", "PyYAML", "packaging")}


def test_compiled_models_import_the_helper_of_their_own_folder(tmp_path):
    write(tmp_path, {f"{name}/code.py": "def f(x):\n    from helper import N\n    return x + N" for name in "ab"})
    write(tmp_path, {"a/helper.py": "N = 1", "b/helper.py": "N = 2"})
    program = """
        import torch
        functions = [torch.compile(load(f"{name}/code.py:f"), fullgraph=True, backend="eager") for name in "ab"]
        print(json.dumps([f(torch.zeros(1)).item() for f in functions]))
    """
    assert python(tmp_path, program) == [1, 2]


def test_a_tokenizer_that_is_also_a_source_has_one_digest(tmp_path):
    """Both are in one cache, by path."""
    (tmp_path / "tokenizer.json").write_text('{"model": 1}\n')
    os.utime(tmp_path / "tokenizer.json", (1, 1))  # a file that was just written is read each time
    cache = DigestCache(tmp_path / "digests.json", "sha256")
    assert cache.of(tmp_path / "tokenizer.json", content_digest) == digest_now(str(tmp_path / "tokenizer.json"), cache)
    assert digest_now(str(tmp_path / "tokenizer.json"), cache) == digest_now(str(tmp_path / "tokenizer.json"))
