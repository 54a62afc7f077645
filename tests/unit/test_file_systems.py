"""The kind of a file system, and what is done without file locks: pages show a copy of MLflow's database, and the hub's files are fetched."""

import contextlib
import errno
import sqlite3
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import no_locks
import pytest

from snaketrain.runtime import file_systems
from snaketrain.runtime.ownership import Lease
from snaketrain.tracking import loop
from snaketrain.tracking.database import readable

SCRIPTS = Path(__file__).parents[2] / "workflow/scripts"
MOUNTS = """
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
31 22 0:30 / /home rw - autofs systemd-1 rw
40 31 0:31 / /home rw shared:7 - nfs4 server:/home rw
41 22 0:32 / /lus/with\\040space rw,noflock - lustre 10.0.0.1@o2ib:/lus rw
42 22 0:33 / /home/anna/remote rw - fuse.sshfs anna@there: rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/tmp/x", "ext4"),
        ("/home/anna", "nfs4"),
        ("/home/anna/remote/x", "fuse.sshfs"),
        ("/lus/with space/x", "lustre"),
        ("/homely", "ext4"),
    ],
)
def test_the_kind_of_a_file_system(tmp_path, folder, kind):
    (tmp_path / "mountinfo").write_text(MOUNTS.lstrip())
    assert file_systems.kind(Path(folder), tmp_path / "mountinfo") == kind
    assert file_systems.is_network(kind) == (kind != "ext4")


def test_this_machine_has_a_kind_and_locks(tmp_path):
    assert file_systems.kind(tmp_path) and file_systems.has_locks(tmp_path) and file_systems.has_locks(tmp_path / "missing")


LOOK = """
import sys
from snaketrain.tracking.database import readable
with readable(f"sqlite:///{sys.argv[1]}/mlflow.db") as uri:
    print(uri)
"""


def test_without_locks_pages_show_a_copy(tmp_path, tmp_path_factory):
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE points (value)")
    environment = no_locks.environment(tmp_path, errno.ENOSYS, tmp_path_factory.mktemp("library"))
    environment |= {"PYTHONPATH": str(SCRIPTS), "TMPDIR": str(tmp_path_factory.mktemp("temporary"))}
    done = subprocess.run([sys.executable, "-c", LOOK, str(tmp_path)], env=environment, capture_output=True, text=True, check=True)
    copied, uri = done.stdout.splitlines()
    assert "has no file locks" in copied and "changes to it are lost at the end" in copied
    assert uri.startswith(f"sqlite:///{environment['TMPDIR']}/")
    with readable(f"sqlite:///{tmp_path}/mlflow.db") as here:
        assert here == f"sqlite:///{tmp_path}/mlflow.db"


def test_without_extras_the_follower_says_why_mlflow_cannot_open_its_database(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(loop, "hooks", lambda *_: [])
    uri = f"sqlite:///{tmp_path}/what?/mlflow.db"
    loop.Loop(loop.Options(tmp_path, uri, Namespace()), Lease(tmp_path / "lease"), lambda: True)
    said = capsys.readouterr().err
    assert said.startswith(f"warning: {tmp_path}/what?/mlflow.db: its path has a question mark") and "tracking.uri" in said


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_downloads_from_the_hub_need_no_locks(tmp_path, tmp_path_factory, code):
    environment = no_locks.environment(tmp_path, code, tmp_path_factory.mktemp("library")) | {"PYTHONPATH": str(SCRIPTS)}
    subprocess.run([sys.executable, "-c", HUB, str(tmp_path)], env=environment, check=True)


HUB = """
import sys
from pathlib import Path
from huggingface_hub.utils import WeakFileLock
from snaketrain.runtime.file_systems import let_hub_do_without_locks
let_hub_do_without_locks(Path(sys.argv[1]))
with WeakFileLock(Path(sys.argv[1], "lock"), timeout=30):
    pass
"""
