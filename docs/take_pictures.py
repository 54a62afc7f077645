"""Takes the pictures of the comparison and of MLflow, with headless Chromium, from what `make demo` has left in this folder."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "workflow/scripts"
PAGES = ("mlflow-runs.png", "mlflow-curves.png")  # in the order in which `snaketrain ui` names them


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("Chromium is missing. On Debian and Ubuntu: apt install chromium")
    database = REPOSITORY / "mlflow.db"
    if not database.exists():
        sys.exit("There is nothing to show yet: make demo")
    take(chromium, (REPOSITORY / "results/comparison/index.html").as_uri(), "comparison.png", "1500,1190")
    server = subprocess.Popen(
        [sys.executable, SCRIPTS / "tools/show_runs.py", "--uri", f"sqlite:///{database}", "--no-browser"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        for picture in PAGES:
            take(chromium, server.stdout.readline().split()[-1], picture, "1900,900")
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def take(chromium: str, address: str, picture: str, size: str) -> None:
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--virtual-time-budget=60000",
        f"--window-size={size}",
    ]
    subprocess.run([chromium, *options, f"--screenshot={REPOSITORY / 'docs' / picture}", address], check=True)


if __name__ == "__main__":
    main()
