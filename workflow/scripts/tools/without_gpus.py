"""Run a module of the package in a process that takes no memory of a GPU. The workflow starts it, to try what runs name before any job."""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where the package lies
os.environ["CUDA_VISIBLE_DEVICES"] = ""

runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=True)
