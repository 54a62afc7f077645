#!/usr/bin/env bash
# The state of a PBS job, in the words that Snakemake expects: status.sh JOB.
shown=$(qstat -x -f "$1" 2> /dev/null) || { echo running && exit; } # the server does not answer; it may do so next time
case $shown in
    *"job_state = F"*) case $shown in *"Exit_status = 0"*) echo success ;; *) echo failed ;; esac ;;
    *) echo running ;;
esac
