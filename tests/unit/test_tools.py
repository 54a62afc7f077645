"""Every option of every script has a help text; and the pages of MLflow on this machine."""

import ast
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from snaketrain.orchestration import preflight
from snaketrain.orchestration.command_line import begun_training, snakemake
from snaketrain.runtime import stages
from snaketrain.tracking.database import readable
from tools import launch_slurm, run, show_runs

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PARSERS = [path for path in sorted([*SCRIPTS.rglob("*.py"), *BENCHMARKS.glob("*.py")]) if "add_argument(" in path.read_text()]


@pytest.mark.parametrize("script", PARSERS, ids=lambda path: path.stem)
def test_each_option_has_a_self_contained_help_text(script):
    calls = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.Call)]
    options = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"]
    assert options
    for option in options:
        if any(ast.unparse(keyword.value) == "argparse.SUPPRESS" for keyword in option.keywords):
            continue  # how the script calls itself
        (text,) = [text_of(keyword.value) for keyword in option.keywords if keyword.arg == "help"] or [""]
        default = [ast.unparse(keyword.value) for keyword in option.keywords if keyword.arg == "default"]
        assert "default" in text or not set(default) - {"''", "[]", "None"}, ast.unparse(option)
        assert len(text.split()) >= 3 and not text.startswith(("of ", "in ", "on ", "at ", "before ", "between ")), ast.unparse(option)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("torchrun --nproc-per-node=2 train_model.py --output", "the command needs --output FOLDER/manifest.json"),
        ("torchrun --nproc-per-node=auto train_model.py", "torchrun needs `--nproc-per-node=N`"),
        ("train_model.py --output x/manifest.json", "the command must be `torchrun --nproc-per-node=N SCRIPT ...`"),
    ],
)
def test_a_launcher_needs_processes_and_the_folder_of_the_training(capsys, command, told):
    with pytest.raises(SystemExit):
        launch_slurm.arguments(["--", *command.split()])
    assert told in capsys.readouterr().err


def text_of(value: ast.expr) -> str:
    """A literal, or a constant of `snaketrain.runtime.stages` that several scripts share."""
    return ast.literal_eval(value) if isinstance(value, ast.Constant) else getattr(stages, ast.unparse(value).removeprefix("stages."))


SERVER = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture
def taken():
    """A port in use whose successor is free."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_taken_port_is_left_to_its_owner(taken, capsys):
    found = show_runs.free_port(taken)
    assert taken < found < taken + show_runs.PORTS
    assert capsys.readouterr().err == f"Port {taken} is taken, so MLflow is on port {found}.\n"


def test_a_server_of_the_same_database_is_recognised(taken, tmp_path):
    store, port = f"sqlite:///{tmp_path}/mlflow.db", show_runs.free_port(taken)
    words = ["server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store]
    server = subprocess.Popen([sys.executable, "-c", SERVER, *words])
    try:
        assert show_runs.port_of_server(store) == port
        assert show_runs.port_of_server(f"sqlite:///{tmp_path}/other.db") is None
    finally:
        server.kill()
        server.wait()
    assert show_runs.port_of_server(store) is None


def test_over_ssh_the_command_of_a_tunnel_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 50000 192.0.2.2 22")
    monkeypatch.setattr("webbrowser.open", lambda address: pytest.fail("there is no browser on that machine"))
    show_runs.show(f"sqlite:///{tmp_path}/mlflow.db", "http://snaketrain.localhost:5001", browser=True)
    told = capsys.readouterr().out
    assert "From your own machine: ssh -N -L 5001:127.0.0.1:5001 " in told and "@192.0.2.2, " in told


def test_without_results_the_tool_says_how_to_make_some(tmp_path):
    done = subprocess.run([sys.executable, SCRIPTS / "tools/show_runs.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith("Run `make demo` first, or snakemake in this folder.\n")


@pytest.mark.parametrize("uri", ["nope", "mlflow.db", "file:///mlruns"])
def test_what_is_no_address_of_mlflow_is_refused(uri):
    with pytest.raises(SystemExit, match=rf"^--uri: {uri} is not the address of a server or database\. Write one such as"), readable(uri):
        pass


def test_no_database_is_made_where_one_is_looked_for(tmp_path):
    with pytest.raises(SystemExit, match="there are no results yet"), readable(f"sqlite:///{tmp_path}/mlflow.db"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_configuration_that_is_not_yaml_is_reported_in_one_line(tmp_path):
    (tmp_path / "bad.yaml").write_text("train:\n  steps: 1\n epochs: [\n")
    for name, what in (("bad.yaml", "bad.yaml, line 3, column 2: not YAML"), ("none.yaml", "none.yaml: cannot be read")):
        command = [sys.executable, SCRIPTS / "tools/run.py", "check", name]
        (line,) = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stderr.splitlines()
        assert line.startswith(what) and line.endswith("Nothing was started.")


def test_where_no_configuration_is_the_default_is_checked_that_would_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examined: list[dict] = []
    monkeypatch.setattr(preflight, "examine", lambda config: examined.append(config) or {})
    run.check([])
    assert examined[0]["tracking"]["experiment"] == "snaketrain-demo"


def test_names_behind_the_configuration_are_targets_or_further_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my.yaml", "more.yaml"):
        (tmp_path / name).write_text("train: {steps: 1}\n")
    command = snakemake("my.yaml", "local", ["more.yaml", "plan", "-n", "--cores", "1"])
    assert command[:2] == ["snakemake", "plan"] and command[-6:] == ["--configfile", "my.yaml", "more.yaml", "-n", "--cores", "1"]
    with pytest.raises(SystemExit, match=r"^none\.yaml: cannot be read"):
        snakemake("my.yaml", "local", ["none.yaml"])


def test_without_a_folder_of_results_there_is_nothing_to_track(tmp_path):
    command = [sys.executable, SCRIPTS / "tools/follow_runs.py", "--once", "--results", "result"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and f"--results: {tmp_path}/result is no folder." in done.stderr and not list(tmp_path.iterdir())


def test_without_a_training_a_command_says_that_there_is_none(tmp_path):
    with pytest.raises(SystemExit, match=r"a/training: no training has begun there\. There are: none\.$"):
        begun_training(tmp_path, "a")


def test_what_the_workflow_would_refuse_is_reported_by_the_command(tmp_path):
    (tmp_path / "train.csv").write_text("text,label\na,0\nb,1\n")
    (tmp_path / "my.yaml").write_text("data: {train: {path: train.csv}, tokenizer: {path: none}}\ntrain: {epochss: 1}\n")
    command = [sys.executable, SCRIPTS / "tools/run.py", "check", "my.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "train.epochss: no such setting. Did you mean 'epochs'?" in done.stderr
