"""MLflow's database is written on a local disk and copied to its place, where that is on a file system that SQLite cannot be trusted to."""
