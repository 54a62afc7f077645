# The workflow lies where the Snakemake workflow catalog, and a `module` of another workflow, look for it.
include: "workflow/Snakefile"


workflow.default_target = "all"  # which an include does not set
