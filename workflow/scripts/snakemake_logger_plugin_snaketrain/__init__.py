"""Snakemake's logger plug-in `snaketrain`: the console of this workflow, which `profiles/default` asks for.

Snakemake finds the package by its name, and imports it at each start, also of other workflows in the same environment: it is light.
"""

from snakemake_logger_plugin_snaketrain.console import Console as LogHandler
from snakemake_logger_plugin_snaketrain.console import console_of

__all__ = ["LogHandler", "console_of"]
