#!/usr/bin/env bash
# redis' runtest, of the redis that is installed; what is not about its protocol's bytes takes a part of the usual time.
#
#   redis.sh SUITES RESULTS    in a folder of its own
set -uo pipefail
suites=$1 results=$2

cp -r "$suites/redis/tests" "$suites/redis/redis.conf" "$suites/redis/runtest" .
mkdir src
for program in server cli benchmark check-aof check-rdb sentinel; do
    ln -s "$(command -v redis-$program)" src/redis-$program
done
shift 2
sh ./runtest --clients 4 "$@" | sed -u 's/\x1b\[[0-9;]*m//g' | tee log | sed -unE \
    -e 's/^\[ok\]: (.*) \([0-9]+ ms\)$/ok \1/p' \
    -e 's/^\[err\]: (.*) in tests\/.*/failed \1/p' \
    -e 's/^\[(ignore|skip)\]: (.*)/skipped \2/p' \
    -e 's/^\[exception\]: (.*)/failed \1/p' >>"$results"
cat log
echo 'end .' >>"$results"
