"""Rows of all ranks in the order of the examples: each example once, whatever the number of ranks."""

import numpy as np
import torch

Rows = dict[str, np.ndarray]


def as_array(rows: torch.Tensor | list[str]) -> np.ndarray:
    if isinstance(rows, list):
        return np.array(rows, np.str_)
    rows = rows.float() if rows.dtype == torch.bfloat16 else rows  # numpy has no bfloat16
    return rows.cpu().numpy()


def merged(parts: list[Rows], examples: int) -> Rows:
    """The rows of all ranks in the order of the examples, each of which must occur exactly once."""
    parts = [part for part in parts if len(part["ids"])]
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {"ids": np.empty(0, np.int64)}
    order = np.argsort(rows["ids"], kind="stable")
    if not np.array_equal(rows["ids"][order], np.arange(examples)):
        raise SystemExit(
            f"{len(order)} rows were predicted for {examples} examples: some were evaluated twice or not at all. Please report this."
        )
    return {name: values[order] for name, values in rows.items()}
