"""Where files and examples come from."""

from typing import Literal

from pydantic import Field, field_validator, model_validator

from snaketrain.settings.base import Arguments, Section


class Source(Section):
    """Where files come from: exactly one of `path`, `package` or `hub`."""

    path: str | None = Field(
        None, description="a file, a folder or a glob such as `raw/*.jsonl`; inside the package or the hub repository if one is named"
    )
    package: str | None = Field(None, description="an installed Python package that carries the files")
    hub: str | None = Field(None, description="a repository of the Hugging Face hub, `owner/name`")
    revision: str | None = Field(None, description="the commit of the hub repository; pinned, so that a run can be repeated")
    hub_type: Literal["model", "dataset"] = Field("model", description="which kind of hub repository")
    sha256: dict[str, str] = Field({}, description="expected digests by file name; a file that differs stops the run")

    @property
    def is_local(self) -> bool:
        """Whether these are the user's own files, which may change at any time."""
        return bool(self.path) and not (self.package or self.hub)

    @field_validator("sha256")
    @classmethod
    def _in_order(cls, value: dict[str, str]) -> dict[str, str]:
        return dict(sorted(value.items()))  # the order in the file means nothing

    @model_validator(mode="after")
    def _one_origin(self) -> "Source":
        if self.package and self.hub:
            raise ValueError("names a package and a hub repository: keep one")
        if not (self.path or self.package or self.hub):
            raise ValueError("names nothing: give `path`, `package` or `hub`")
        if self.hub and not self.revision:
            raise ValueError("`revision` is missing: pin the commit of the hub repository, so that the run can be repeated")
        return self


class Examples(Source):
    """Where examples come from: text files, as of a [Source](#source), or a dataset class."""

    use: str | None = Field(None, description="instead of files: a dataset class, `package.module.Class` or `path/to/file.py:Class`")
    arguments: Arguments = Field({}, description="keyword arguments for the class")

    @model_validator(mode="after")
    def _one_origin(self) -> "Examples":
        files = [name for name in ("path", "package", "hub") if getattr(self, name)]
        if self.use and files:
            raise ValueError(f"names a dataset class and a {files[0]}: keep one; what the class needs goes into its `arguments`")
        if self.arguments and not self.use:
            raise ValueError("`arguments` are for a dataset class: name it in `use`")
        if not (self.use or files):
            raise ValueError("names nothing: give `path`, `package` or `hub`, or a dataset class in `use`")
        return self if self.use else super()._one_origin()
