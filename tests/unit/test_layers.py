"""Which package may import which. Every job parses the Snakefile again, so what it imports must be light."""

import ast
import graphlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "workflow/scripts"
FILES = {
    ".".join(path.relative_to(SCRIPTS).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SCRIPTS.rglob("*.py")
    if path.parent.name != "tests"  # of an extra
}
OURS = {"snaketrain", "snakemake_logger_plugin_snaketrain"}
EXTRAS = sorted(name for name in FILES if name.startswith("snaketrain.extras."))
ASKED = sorted(  # what the core asks of each extra
    name
    for name in EXTRAS
    if name.endswith(
        (
            ".check",
            ".file_format",
            ".following",
            ".label_kind",
            ".launching",
            ".preparing",
            ".settings",
            ".stages",
            ".submitting",
            ".top_level",
            ".training",
        )
    )
    or name.count(".") == 2
)
GROUND_PACKAGES = ("config", "orchestration", "runtime", "slurm", "labels")  # and all below them
GROUND = {
    "snaketrain",
    "snaketrain.own",
    "snaketrain.extras",
    *ASKED,
    *(name for name in FILES if name.startswith(tuple(f"snaketrain.{package}" for package in GROUND_PACKAGES))),
    "snaketrain.training",
    "snaketrain.training.schedules",
    "snaketrain.data",
    *(f"snaketrain.data.{name}" for name in ("cells", "tables", "formats", "reading", "surveying", "fetching", "locations")),
    "snaketrain.tasks",
    "snaketrain.tasks.metric_names",
    *(name for name in FILES if name.startswith("snakemake_logger_plugin_snaketrain")),
}
SLURM_CLIENT = {"snaketrain.slurm.client", "snaketrain.slurm.jobs"}
PLUGIN_OF_SLURM = "snakemake_executor_plugin_slurm"
PLUGIN = f"{PLUGIN_OF_SLURM}_steady"
MLFLOW = {
    "snaketrain.extras.registry.registering",
    "snaketrain.extras.registry.served_classifier",
    "snaketrain.extras.registry.served_writer",
    "snaketrain.extras.registry.serving",
    "snaketrain.extras.reproduce.reproduce",
    "snaketrain.tracking.following",
    "snaketrain.tracking.mlflow_store",
    "snaketrain.tracking.stage_results",
    "tools.follow_runs",
    "tools.show_runs",
}


def imports(tree: ast.AST, inside_functions: bool = True) -> Iterator[str]:
    """Full names of the modules (and of what is taken from them) that are imported; for types alone, nothing is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports of the project are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not inside_functions and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue  # never executed
        elif inside_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, inside_functions)


def of(name: str, inside_functions: bool = True) -> set[str]:
    return set(imports(ast.parse(FILES[name].read_text()), inside_functions))


def tops(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def module_of(name: str) -> str:
    """The project's module that an imported name belongs to."""
    return name if name in FILES else name.rpartition(".")[0]


def reached(names: list[str], inside_functions: bool = True) -> set[str]:
    """These modules of the project, and all that they import."""
    found, waiting = set[str](), list(names)
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += [module for each in of(name, inside_functions) if (module := module_of(each)) in FILES]
    return found


GROUND |= reached(ASKED, inside_functions=False) & set(EXTRAS)


def test_packages_do_not_import_each_other_in_circles():
    """So that each can be read after those that it uses."""
    packages = {name.split(".")[1] for name in FILES if name.startswith("snaketrain.") and FILES[name].name == "__init__.py"} - {"extras"}
    graph: dict[str, set[str]] = {package: set() for package in packages}
    for name in FILES:
        if name.startswith("snaketrain.") and (package := name.split(".")[1]) in packages:
            graph[package] |= {each.split(".")[1] for each in of(name) if each.startswith("snaketrain.")} & packages - {package}
    assert graph["tasks"] >= {"config", "data", "models"}
    graphlib.TopologicalSorter(graph).prepare()


def test_modules_do_not_import_each_other_in_circles():
    graphlib.TopologicalSorter({name: {module_of(each) for each in of(name)} & set(FILES) for name in FILES}).prepare()


@pytest.mark.parametrize("name", sorted(GROUND))
def test_what_the_snakefile_imports_is_light(name):
    found = of(name, inside_functions=False)
    assert tops(found) <= sys.stdlib_module_names | {"pydantic", "pydantic_core", "yaml", "snakemake_interface_logger_plugins", *OURS}
    assert {module_of(each) for each in found if each.startswith(tuple(OURS))} <= GROUND


@pytest.mark.parametrize(
    "name", sorted(name for name in FILES if name.startswith(("snaketrain.tasks", "snaketrain.data")) or name.endswith(".tokenizer"))
)
def test_tasks_and_data_know_only_one_process(name):
    forbidden = (
        "snaketrain.strategies",
        "torch.distributed",
        "mlflow",
        "snaketrain.tracking.mlflow_store",
        "snaketrain.tracking.following",
    )
    assert [found for found in of(name) if found.startswith(forbidden)] == []


def test_tokens_come_from_one_interface():
    """How they are computed quickly concerns `tokenizer_files` alone, which opens all tokenizers of the core, and asks extras for faster ones."""
    clever = ("ParallelTokenizer", "ChatTokenizer")
    core = FILES.keys() - EXTRAS
    found = {name for name in core for each in of(name) if each.startswith("snaketrain.data.") and each.endswith(clever)}
    assert found == {"snaketrain.data.tokenizer_files"}


def test_only_the_follower_imports_mlflow():
    assert {name for name in FILES if "mlflow" in tops(of(name))} <= MLFLOW
    assert "mlflow" not in tops(of("tools.follow_runs", inside_functions=False))


def test_training_never_reaches_mlflow():
    found = reached(["train_model", *(name for name in ASKED if name.endswith(".training"))])
    assert "snaketrain.training.trainer" in found
    assert not found & MLFLOW


def test_the_trainer_leaves_what_is_distributed_to_the_strategies():
    names = [name for name in FILES if name.startswith("snaketrain.training")]
    assert "snaketrain.training.trainer" in names
    found = {name for name in names if any(each.startswith("torch.distributed") for each in of(name))}
    in_shards = {f"snaketrain.training.checkpoints.{name}" for name in ("exporting", "formats", "publishing", "rank_state")}
    assert found == {"snaketrain.training.optimizers", *in_shards}


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.startswith("snaketrain.")))
def test_training_imports_no_evaluation_tracking_or_snakemake(name):
    own = name.split(".")[1]
    above = {
        "orchestration": {"evaluation", "tracking"},
        "slurm": {"evaluation", "tracking"},
        "tracking": set(),
        "evaluation": {"orchestration", "tracking"},
        "checking": {"slurm", "evaluation", "tracking"},
        "extras": set(),
        "notebook": {"slurm", "evaluation", "tracking"},
    }
    forbidden = above.get(own, {"orchestration", "slurm", "evaluation", "tracking"})
    found = [each for each in of(name) if each.startswith("snaketrain.") and each.split(".")[1] in forbidden]
    assert {module_of(each) for each in found} <= SLURM_CLIENT, "which asks SLURM, and knows nothing of the project"


def test_the_core_imports_no_extra_and_no_extra_another_one():
    for name in FILES:
        own = ".".join(name.split(".")[:3]) if name in EXTRAS else None
        found = {module_of(each) for each in of(name) if each.startswith("snaketrain.extras.")}
        assert [each for each in found if not own or not f"{each}.".startswith(f"{own}.")] == [], name


def test_snaketrain_does_not_import_the_executor():
    """It can be deleted, and its plug-in for SLURM takes pandas, for which `snaketrain status` should not wait."""
    assert [name for name in FILES if PLUGIN in tops(of(name)) and not name.startswith(PLUGIN)] == []


def test_the_executor_imports_nothing_of_snaketrain_before_it_is_made():
    """Snakemake imports it before the Snakefile tells which checkout's library is meant."""
    assert tops(of(PLUGIN, inside_functions=False)) == {
        "typing",
        "snakemake_interface_common",
        "snakemake_interface_executor_plugins",
        PLUGIN_OF_SLURM,
    }
    assert f"{PLUGIN}.executor.SteadyExecutor" in of(PLUGIN)


def test_the_slurm_client_imports_nothing_else_of_the_project():
    found = {module_of(each) for name in SLURM_CLIENT for each in of(name) if each.startswith("snaketrain.")}
    assert found <= SLURM_CLIENT


def test_rules_import_only_light_packages():
    files = [ROOT / "Snakefile", *(ROOT / "workflow").rglob("*.smk"), ROOT / "workflow/Snakefile"]
    lines = [line.split() for path in files for line in path.read_text().splitlines()]
    found: set[str] = set()
    for line in lines:
        if line[:1] == ["import"] or (line[:1] == ["from"] and "import" in line):
            found |= set(imports(ast.parse(" ".join(line))))
    assert "snaketrain.orchestration.pipeline.Pipeline" in found
    assert tops(found) <= sys.stdlib_module_names | {"snakemake", *OURS}
    assert {module_of(each) for each in found if each.startswith(tuple(OURS))} <= GROUND


def test_plots_use_one_configuration_of_matplotlib():
    """It makes sure that no name is parsed as a formula."""
    assert [name for name in FILES if "matplotlib" in tops(of(name))] == ["snaketrain.evaluation.results"]
