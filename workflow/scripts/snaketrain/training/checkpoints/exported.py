"""Which files of a checkpoint are its model: averaged weights, where it has them, take the place of those that were trained."""

from pathlib import Path

AVERAGED = ".averaged.safetensors"


def exported_files(checkpoint: Path) -> dict[str, Path]:
    """The files of whole weights, by the names that they are exported under."""
    files = {path.name: path for path in checkpoint.glob("*.safetensors") if not path.name.endswith(AVERAGED)}
    return files | {path.name.replace(AVERAGED, ".safetensors"): path for path in checkpoint.glob(f"*{AVERAGED}")}
