#!/usr/bin/env bash
# redis' runtest, of the redis that is installed. Names of tests are without numbers that it draws, or counts in a time.
#
#   redis.sh SUITES RESULTS    in a folder of its own
set -uo pipefail
suites=$1 results=$2

cp -r "$suites/redis/tests" "$suites/redis/redis.conf" "$suites/redis/runtest" .
mkdir src
for program in server cli benchmark check-aof check-rdb sentinel; do
    ln -s "$(command -v redis-$program)" src/redis-$program
done
# The address besides loopback that its servers are reached at: on the split stack, that of the stack.
if [ -n "${STACK_ADDRESS-}" ]; then
    mkdir bin
    printf '#!/bin/sh\necho %s\n' "$STACK_ADDRESS" >bin/hostname
    chmod +x bin/hostname
    export PATH=$PWD/bin:$PATH
fi
shift 2
sh ./runtest --clients 4 "$@" | sed -u 's/\x1b\[[0-9;]*m//g' | tee log | sed -unE \
    -e '/PSYNC2/ {s/#[0-9]+/#/g; s/ \(x = [0-9]+\)//; s/CYCLE [0-9]+/CYCLE n/}' \
    -e 's/^\[ok\]: (.*) \([0-9]+ ms\)$/ok \1/p' \
    -e 's/^\[err\]: (.*) in tests\/.*/failed \1/p' \
    -e 's/^\[(ignore|skip)\]: (.*)/skipped \2/p' \
    -e 's/^\[exception\]: (.*)/failed \1/p' >>"$results"
cat log
echo 'end .' >>"$results"
