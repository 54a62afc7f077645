"""The generated parts of the documents say what the code says."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def test_documents_are_in_step():
    done = subprocess.run([sys.executable, REPOSITORY / "docs/write_docs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
