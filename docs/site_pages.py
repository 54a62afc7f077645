"""A hook of MkDocs: adds the settings reference, which lies in `config/`, where Snakemake's workflow catalog looks for it, and pages of extras."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

EXTRAS = "workflow/scripts/snaketrain/extras"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    files.append(File.generated(config, "settings.md", content=(root / "config/README.md").read_text(encoding="utf-8")))
    for readme in sorted((root / EXTRAS).glob("*/README.md")):
        if f"{readme.parent.name}.md" in str(config.nav):  # others are described on pages of the core
            files.append(File.generated(config, f"{readme.parent.name}.md", content=readme.read_text(encoding="utf-8")))
            for picture in readme.parent.glob("*.svg"):
                files.append(File.generated(config, picture.name, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between these and the other pages work in the repository and on the site."""
    markdown = re.sub(rf"\]\(\.\./{EXTRAS}/(\w+)/README\.md", r"](\1.md", markdown.replace("](../../../../../", "](../"))
    return markdown.replace("](../config/README.md", "](settings.md").replace("](../docs/", "](")
