#!/bin/bash
# One job for the whole study: a Dask scheduler, workers on all nodes, and the client, all over TLS.
#   sbatch --nodes=10 recipes/slurm_dask.sh RAW OUT [INTERFACE]
# INTERFACE is the network interface between the nodes, say ib0; nothing listens on any other.
#SBATCH --job-name=tumoar
#SBATCH --ntasks-per-node=32
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=5G
#SBATCH --time=12:00:00
set -eu
umask 077
interface="${3:-eth0}"
# The folder must be seen by all nodes; it is closed to others, and goes when the job ends.
private=$(mktemp -d "$HOME/.tumoar-run-XXXXXX")
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$private"' EXIT
"${TLS_RECIPE:-recipes/tls.sh}" "$private/tls"
export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=true
export DASK_DISTRIBUTED__COMM__TLS__CA_FILE="$private/tls/ca.pem"
for part in SCHEDULER WORKER CLIENT; do
    export "DASK_DISTRIBUTED__COMM__TLS__${part}__CERT=$private/tls/cert.pem"
    export "DASK_DISTRIBUTED__COMM__TLS__${part}__KEY=$private/tls/key.pem"
done
file="$private/scheduler.json"
dask scheduler --protocol tls --interface "$interface" --port 0 --no-dashboard --dashboard-address 127.0.0.1:0 \
    --scheduler-file "$file" &
while [ ! -s "$file" ]; do sleep 1; kill -0 $!; done
# One task is one worker is one subject at a time; its process takes the memory, the worker takes none.
srun dask worker --protocol tls --scheduler-file "$file" --interface "$interface" --nthreads 1 --memory-limit 0 \
    --no-dashboard --dashboard-address 127.0.0.1:0 --local-directory "${TMPDIR:-/tmp}" &
address=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$file")
tumoar cohort "$1" "$2" participant --scheduler "$address" --max-memory 4
