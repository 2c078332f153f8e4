#!/bin/bash
# One job per subject, no scheduler of our own:
#   N=$(tumoar cohort RAW OUT participant --dry-run | grep -c ' sub-')
#   sbatch --array=0-$((N - 1))%100 recipes/slurm_array.sh RAW OUT
#   sbatch --dependency=afterany:JOBID --wrap 'tumoar cohort RAW OUT group'
#SBATCH --job-name=tumoar
#SBATCH --cpus-per-task=1
#SBATCH --mem=5G
#SBATCH --time=02:00:00
#SBATCH --signal=TERM@60
# A job that is preempted or runs out of time continues when it is submitted again.
set -eu
exec tumoar cohort "$1" "$2" participant --index "$SLURM_ARRAY_TASK_ID" --max-memory 4 --timeout 115
