#!/bin/bash
# One job for the whole study: a Dask scheduler, workers on all nodes, and the client.
#   sbatch --nodes=10 recipes/slurm_dask.sh RAW OUT
#SBATCH --job-name=tumoar
#SBATCH --ntasks-per-node=32
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=5G
#SBATCH --time=12:00:00
set -eu
file="$2.scheduler.json"
rm -f "$file"
dask scheduler --scheduler-file "$file" --port 0 &
while [ ! -s "$file" ]; do sleep 1; done
# One task is one worker is one subject at a time; its process takes the memory, the worker takes none.
srun dask worker --scheduler-file "$file" --nthreads 1 --memory-limit 0 --local-directory "${TMPDIR:-/tmp}" &
address=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$file")
tumoar cohort "$1" "$2" participant --scheduler "$address" --max-memory 4
