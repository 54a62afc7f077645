#!/bin/sh
# properties = {properties}
# At the end of the walltime PBS sends SIGTERM to every process of the job. If this shell died of it, PBS would kill the others before they have saved.
trap : TERM
{exec_job}
