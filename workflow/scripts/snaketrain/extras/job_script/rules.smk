# No rules: what `snaketrain script`, and the executor for SLURM, are to write the scripts of.
from snaketrain.extras.job_script import submitting

if workflow.is_main_process:
    submitting.register(workflow, pipeline)
