"""Checks runs by effect before any job: what they name is imported, made and tried on tensors without memory."""
