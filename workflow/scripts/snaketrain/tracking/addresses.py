"""Addresses of MLflow's pages.

MLflow 3.17 opens every experiment in its mode for traces and prompts unless the address says otherwise: no tag of the experiment and no
option of the server changes that.
"""

MODE = "workflowType=machine_learning"


def run_address(ui: str, experiment_id: str, run_id: str) -> str:
    return f"{ui}/#/experiments/{experiment_id}/runs/{run_id}?{MODE}"
