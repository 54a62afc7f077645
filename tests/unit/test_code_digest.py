"""Code digests change with what the code does, not with its layout, and cover everything it imports."""

import ast
import os
import re
import shutil

import pytest

from snaketrain.orchestration import code_digest
from snaketrain.orchestration.code_digest import SCRIPTS, WITHOUT_EFFECT_ON_RESULTS, code_digests
from snaketrain.orchestration.stages import classes
from snaketrain.runtime.manifests import DigestCache

ORIGINAL = '''"""A module."""
RATE = 3


class A:
    """A class."""

    def f(self, x):
        """A function."""
        return x * RATE  # comment
'''
LAYOUT = "RATE=3\nclass A:\n\n  # another comment\n  def f(self,\n      x): return (x*RATE)\n"


@pytest.fixture(autouse=True)
def forgotten():
    code_digest._cached_read.cache_clear()


def digest_of(path, text) -> str:
    path.write_text(text)
    code_digest._cached_read.cache_clear()
    return code_digests(path)[str(path)]


@pytest.mark.parametrize("same", [LAYOUT, ORIGINAL.replace("A class.", "Other words."), ORIGINAL.replace("# comment", "")])
def test_comments_docstrings_and_layout_change_nothing(tmp_path, same):
    assert digest_of(tmp_path / "a.py", ORIGINAL) == digest_of(tmp_path / "a.py", same)


@pytest.mark.parametrize(
    ("old", "new"), [("RATE = 3", "RATE = 4"), ("x * RATE", "x + RATE"), ("class A:", "class A(dict):"), ("(self, x)", "(self, x=1)")]
)
def test_a_change_of_meaning_changes_it(tmp_path, old, new):
    assert digest_of(tmp_path / "a.py", ORIGINAL) != digest_of(tmp_path / "a.py", ORIGINAL.replace(old, new))


def test_a_function_that_is_only_a_docstring_can_be_read(tmp_path):
    assert digest_of(tmp_path / "a.py", 'def f():\n    """Words."""\n') == digest_of(tmp_path / "a.py", "def f():\n    pass\n")


def test_imported_project_modules_count_wherever_the_import_is():
    found = code_digests(SCRIPTS / "train_model.py")
    assert {
        "train_model",
        "snaketrain.training.trainer",
        "snaketrain.training.plan",
        "snaketrain.data.loading.batches",
        "snaketrain.tasks.base",
    } <= found.keys()
    assert not {"torch", "evaluate_model", "snaketrain.evaluation.comparing", "snaketrain.tracking.mlflow_store"} & found.keys()


def test_what_the_core_asks_extras_for_counts(tmp_path, monkeypatch):
    """As if it were imported: each extra's module of that name, and what that imports."""
    monkeypatch.setattr(
        code_digest,
        "_own_modules",
        lambda: {f"snaketrain.extras.{each}": tmp_path / each for each in ("a.b", "c.b", "a.d", "c.e", "a.sampling")},
    )
    monkeypatch.setattr(code_digest, "module_name", lambda path: path.name)
    for name, text in {
        "a.b": "import snaketrain.extras.a.d",
        "c.b": "",
        "a.d": "",
        "c.e": "",
        "a.sampling": "",
        "core": "modules('b')\nhooks('e', 'function')\nhooks('sampling', 'drawn')",
    }.items():
        (tmp_path / name).write_text(text)
    assert code_digests(tmp_path / "core").keys() == {"core", "a.b", "c.b", "a.d", "c.e"}


@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_modules_without_effect_are_left_out(script):
    found = [name for name in code_digests(SCRIPTS / f"{script}.py") if name.startswith(WITHOUT_EFFECT_ON_RESULTS)]
    assert [name for name in found if not code_digest.SETTINGS.fullmatch(name)] == []


def test_what_settings_compute_counts_for_the_stages_that_read_them():
    assert "snaketrain.config.schema.train" in code_digests(SCRIPTS / "train_model.py")
    assert "snaketrain.config.schema.train" not in code_digests(SCRIPTS / "fetch_data.py")


@pytest.mark.parametrize(
    ("edit", "counts"),
    [
        (("round(self.warmup * steps", "int(self.warmup * steps"), True),
        (("return decay if", "return 0 if"), True),
        (("seed of weights", "the seed of weights"), False),  # a description
        (("Seed = Field(42", "Seed = Field(43"), False),  # a default, whose value is compared
        (("nor a whole number of steps", "and not whole"), False),  # a check
        (("is neither", "is not"), False),  # a validator
    ],
)
def test_of_a_file_with_settings_what_it_declares_and_checks_does_not_count(edit, counts, tmp_path, monkeypatch):
    text = (SCRIPTS / "snaketrain/config/schema/train.py").read_text()
    monkeypatch.setattr(code_digest, "module_name", lambda path: "snaketrain.config.schema.train")
    (tmp_path / "before.py").write_text(text)
    (tmp_path / "after.py").write_text(text.replace(*edit))
    before, after = (code_digest._read(tmp_path / name)[0] for name in ("before.py", "after.py"))
    assert edit[0] in text and (before != after) == counts


def test_imports_for_the_type_checker_alone_do_not_count(tmp_path):
    checked = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import snaketrain.tasks.base\n\nx = 1\n"
    assert digest_of(tmp_path / "a.py", checked) == digest_of(tmp_path / "a.py", checked.replace("tasks.base", "journal"))


def test_packages_listed_as_without_effect_exist():
    modules = {code_digest.module_name(path) for path in SCRIPTS.rglob("*.py")}
    assert modules >= set(WITHOUT_EFFECT_ON_RESULTS)


def test_a_users_own_file_and_the_module_beside_it_count(tmp_path):
    mine, beside = tmp_path / "mine.py", tmp_path / "beside.py"
    mine.write_text("import beside\nfrom snaketrain.tasks.text_classification import TextClassification\n")
    beside.write_text("SIZE = 1\n")
    before = code_digests(SCRIPTS / "train_model.py", mine)
    assert {str(mine), str(beside), "snaketrain.tasks.text_classification"} <= before.keys()
    beside.write_text("SIZE = 2\n")
    code_digest._cached_read.cache_clear()
    after = code_digests(SCRIPTS / "train_model.py", mine)
    assert [name for name in before if before[name] != after[name]] == [str(beside)]


def test_packages_and_relative_imports_beside_own_code_count(tmp_path):
    own = {
        "task.py": "from mylib.utils import g\nfrom . import rel",
        "rel.py": "X = 1",
        "mylib/__init__.py": "",
        "mylib/utils.py": "def g():\n    from .deep import inner\n    from mylib import other",
        "mylib/deep/__init__.py": "",
        "mylib/deep/inner.py": "from .. import top",
        "mylib/other.py": "",
        "mylib/top.py": "",
    }
    for name, text in own.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "unused.py").touch()
    assert {name for name in code_digests(tmp_path / "task.py") if name.startswith("/")} == {str(tmp_path / name) for name in own}


def test_results_of_reading_are_cached_until_the_file_changes(tmp_path):
    reads, file, store = [], tmp_path / "a.py", tmp_path / "store.json"

    def words(path):
        reads.append(path)
        return path.read_text().split()

    def found(version="1"):
        cache = DigestCache(store, version)
        words_found = cache.of(file, words)
        cache.save()
        return words_found, len(reads)

    file.write_text("one two")
    assert [found(), found()] == [(["one", "two"], 1), (["one", "two"], 2)]  # too new to be trusted
    os.utime(file, (1, 1))
    assert [found(), found()] == [(["one", "two"], 3), (["one", "two"], 3)]
    file.write_text("six two")  # of the same size
    assert found() == (["six", "two"], 4)
    os.utime(file, (2, 2))
    assert [found(), found("2"), found("2")] == [(["six", "two"], 5), (["six", "two"], 6), (["six", "two"], 6)]
    store.write_text('{"version": "2", "fou')
    assert found("2") == (["six", "two"], 7)


KINDS = ["one_class", "several_classes", "number"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_depends_on_the_parts_of_a_label_kind_that_it_uses(kind, tmp_path, monkeypatch):
    """Another picture prepares and trains nothing again, another metric prepares nothing again."""
    file = tmp_path / f"{kind}.py"
    shutil.copy(SCRIPTS / f"snaketrain/labels/{kind}.py", file)
    monkeypatch.setattr(code_digest, "LABELS", tmp_path)

    def code_digests() -> dict[str, str]:
        code_digest._cached_read.cache_clear()
        return {
            stage: code_digest._cached_read(file, classes()[stage].label_classes)[0]
            for stage in ("prepare_data", "train_model", "evaluate_model")
        }

    before = code_digests()
    for member, stages in {
        "Parser": {"prepare_data"},
        "Tally": {"prepare_data"},
        "Head": {"train_model", "evaluate_model"},
        "Report": {"evaluate_model"},
    }.items():
        text = file.read_text()
        file.write_text(re.sub(rf"(class \w+{member}\(.*\):\n)", r"\1    changed = True\n", text))
        after = code_digests()
        assert {stage for stage in before if before[stage] != after[stage]} == stages
        file.write_text(text)


@pytest.mark.parametrize("file", sorted((SCRIPTS / "snaketrain/labels").glob("*.py")), ids=lambda file: file.stem)
def test_the_names_of_label_classes_say_which_stages_use_them(file):
    names = [node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    assert all(name in ("LabelKind", "NotText") or name.endswith(code_digest.LABEL_CLASSES) for name in names)
