"""Nodes import Python's packages from a copy on their own disks, as `compute.stage_environment` says."""
