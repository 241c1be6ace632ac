#!/usr/bin/env bash
# uvloop's tests, and those of asyncio that it brings along.
#
#   uvloop.sh SUITES RESULTS    in a folder of its own
set -uo pipefail
suites=$1 results=$2
programs=$(realpath "$(dirname "$0")/..")

cp -r "$suites/uvloop/tests" .
modules=()
for test in tests/test_*.py; do
    test=${test##*/}
    # Tests of the looks of its source.
    [ "$test" = test_sourcecode.py ] || modules+=("tests.${test%.py}")
done
# A test that takes too long ends the process: the next one goes on behind it.
for _ in {1..20}; do
    PYTHONPATH=. "$suites/python/bin/python" "$programs/suites.py" "$results" 60 unix "${modules[@]}"
    tail -n 1 "$results" | grep -q '^end' && break
done
cat "$results.errors"
