"""Takes the pictures of the comparison and of MLflow, with headless Chromium, from what `make demo` has left in this folder."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "workflow/scripts"
HOST = "pictures.localhost:5055"  # MLflow offers its Assistant only where the address is 127.0.0.1 or localhost
ACCEPTED = {"MLFLOW_SERVER_ALLOWED_HOSTS": "*", "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": f"http://{HOST}"}
PAGES = {"all": "mlflow-runs.png", "curves": "mlflow-curves.png"}  # as the end of a workflow names them


def main() -> None:
    chromium = shutil.which("chromium") or sys.exit("Chromium is missing. On Debian and Ubuntu: apt install chromium")
    database = REPOSITORY / "mlflow.db"
    if not database.exists():
        sys.exit("There is nothing to show yet: make demo")
    take(chromium, (REPOSITORY / "results/comparison/index.html").as_uri(), "comparison.png", "1500,1190")
    store = ["--uri", f"sqlite:///{database}"]
    printed = subprocess.run(
        [sys.executable, SCRIPTS / "tools/follow_runs.py", "--results", REPOSITORY / "results", *store, "--once"],
        capture_output=True,
        text=True,
    ).stdout
    addresses = {line.split()[0]: line.split()[-1].replace("127.0.0.1:5000", HOST) for line in printed.splitlines()[1:]}
    server = subprocess.Popen(
        [sys.executable, SCRIPTS / "tools/show_runs.py", *store, "--port", HOST.partition(":")[2], "--no-browser"],
        env=os.environ | ACCEPTED, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        server.stdout.readline()  # it prints its address once it answers
        for page, picture in PAGES.items():
            take(chromium, addresses[page], picture, "1900,900")
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
