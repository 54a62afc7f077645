"""The server behind warm_python.py: that of the extra `warm_start`, which forks the scripts of tests, Snakemake and the follower as well."""

import importlib
import os
import sys
import types

READ_AT_IMPORT = ("CUDA", "HF_", "LD_", "PYTHON", "TRANSFORMERS_")
FOLLOWED = {"PYTHONPATH", "HF_HUB_OFFLINE", "MLFLOW_DISABLE_TELEMETRY"}  # the first by us; with the others it was started


def preload(*_: str) -> None:
    """Packages only: each process imports the code under test itself, and may import another copy of it."""
    import alembic.command
    import matplotlib.backends.backend_svg
    import mlflow.store.tracking.sqlalchemy_workspace_store
    import mlflow.tracing.processor.otel
    import pandas
    import peft
    import PIL.Image
    import pyarrow.pandas_compat
    import pyarrow.parquet
    import scipy.stats
    import sklearn.metrics
    import smart_open
    import snakemake.cli
    import snakemake.profiles
    import snakemake.report.html_reporter
    import sqlalchemy.dialects.sqlite
    import tensorboard.summary
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.optim
    import torch.utils.tensorboard
    import torchmetrics
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from transformers import AutoTokenizer, BertForSequenceClassification, LlamaForCausalLM

    matplotlib.use("Agg")
    ConstrainedLayoutEngine.execute = lambda *_: None  # which takes half of the time of a figure
    PIL.Image.preinit()
    assert alembic and mlflow and pandas and peft and pyarrow and scipy and sklearn and smart_open and snakemake and sqlalchemy
    assert tensorboard and torch and torchmetrics and AutoTokenizer and BertForSequenceClassification and LlamaForCausalLM
    beside_this_file("mlflow_tables").make_once()
    package_metadata = beside_this_file("package_metadata")
    package_metadata.described()
    package_metadata.remember()


def beside_this_file(name: str) -> types.ModuleType:
    """Which no stage has loaded."""
    importlib.import_module(name)
    return sys.modules.pop(name)


def differing(environment: dict[str, str]) -> list[str]:
    """Tests set many variables, of which packages have read few."""
    changed = {name for name, _ in environment.items() ^ server.IMPORTED_WITH.items() if name.startswith(READ_AT_IMPORT)}
    return sorted(changed - FOLLOWED)


def become(script: str, *arguments: str) -> None:
    become_script(script, *arguments)
    sys.executable = sys.orig_argv[0] = stand_in  # for what the script starts
    if os.environ.pop("SNAKETRAIN_UNBUFFERED", None):
        sys.stdout.reconfigure(write_through=True)
    sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)


if __name__ == "__main__":
    stand_in, folder, socket_number = sys.argv[1:]
    sys.path.insert(0, folder)
    server = importlib.import_module("server")
    del sys.path[0], sys.modules["server"]
    become_script = server.become
    server.preload, server.differing, server.become, server.LATER = preload, differing, become, ()
    server.main(socket_number)
