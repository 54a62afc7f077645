"""Prints the names of models' parameters, built on the meta device: `python -m snaketrain.models.naming`, requests on stdin.

A separate process, since the workflow does not import torch.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from snaketrain.config.references import load
from snaketrain.models.pretrained import ModelClass
from snaketrain.runtime.json_types import JsonObject


def names_of(use: str, arguments: JsonObject, folder: str | None) -> list[str]:
    """The parameter names of the model with these settings; `folder` contains its pretrained weights."""
    with torch.device("meta"):
        return [name for name, _ in _made(load(use), arguments, Path(folder) if folder else None).named_parameters()]


def _made(cls: ModelClass, arguments: JsonObject, folder: Path | None) -> nn.Module:
    if folder is not None:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, local_files_only=True, **arguments)
        return cls.from_config(config) if hasattr(cls, "from_config") else cls(config)
    config_class = getattr(cls, "config_class", None)
    return cls(config_class(**arguments)) if config_class else cls(**arguments)


def main() -> None:
    found: list[list[str] | None] = []
    for request in json.load(sys.stdin):
        try:
            found.append(names_of(**request))
        except (Exception, SystemExit) as error:  # the training will report it
            print(f"{request['use']}: {type(error).__name__}: {error}", file=sys.stderr)
            found.append(None)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
