"""MLflow's side: follows the files of the runs, and never the other way."""
