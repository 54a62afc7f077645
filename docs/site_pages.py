"""A hook of MkDocs: adds the settings reference, which lies in `config/`, where Snakemake's workflow catalog looks for it."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    reference = Path(config.config_file_path).parent / "config/README.md"
    files.append(File.generated(config, "settings.md", content=reference.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between the reference and the other pages work in the repository and on the site."""
    return markdown.replace("](../config/README.md", "](settings.md").replace("](../docs/", "](")
