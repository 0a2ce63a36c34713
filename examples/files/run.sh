#!/bin/sh
# Three hospitals average their numbers through a folder; one of them is lost on the way: sh examples/files/run.sh
# Here all of them play in one folder. In earnest each has a machine of its own, and people carry `exchange` around.
set -eu
securefed=${SECUREFED:-securefed}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir exchange server north south west

echo "== Each site makes its identity, and each hospital has a table of its own"
for site in server north south west; do $securefed party identity $site/identity.key; done
printf 'patients,readmitted,days\n120,14,6.5\n' > north/update.csv
printf 'patients,readmitted,days\n310,52,7.2\n' > south/update.csv
printf 'patients,readmitted,days\n75,6,5.9\n' > west/update.csv

echo "== One of them writes the terms; all compare the fingerprint on the phone"
$securefed party terms terms.json --like north/update.csv --no-base --clients 3 --threshold 2 --bound 1000 \
  --identity 0=north/identity.key.pub --identity 1=south/identity.key.pub --identity 2=west/identity.key.pub

answer() { # NAME NUMBER
  $securefed party contribute exchange --terms terms.json --party "$2" --identity "$1/identity.key" \
    --server server/identity.key.pub --update "$1/update.csv" --state "$1/client.state"
}
go_on() { # OPTIONS
  $securefed party sum exchange --terms terms.json --identity server/identity.key "$@"
}

echo "== The server opens the round, and the hospitals answer; south does not reach its upload"
go_on
for stage in keys shares; do
  answer north 0
  answer south 1
  answer west 2
  go_on
done
answer north 0
answer west 2
$securefed party status exchange
go_on --without 1
until $securefed party status exchange | grep -q complete; do
  answer north 0
  answer west 2
  go_on
done

echo "== The result"
cat exchange/round-1-result.json
