#!/bin/bash
# Certificates for one run of a Dask cluster: an authority of its own, and one certificate signed by it.
#   recipes/tls.sh FOLDER
# Whoever has key.pem can run programs as you on the cluster: the folder is closed to others, and goes after the run.
set -eu
umask 077
mkdir -p "$1"
chmod 700 "$1"
cd "$1"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=tumoar-ca \
    -keyout ca-key.pem -out ca.pem
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=tumoar -keyout key.pem -out request.pem
openssl x509 -req -in request.pem -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 30 -out cert.pem
rm -f ca-key.pem request.pem ca.srl
