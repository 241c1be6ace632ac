#!/usr/bin/env bash
# HAProxy's reg-tests, of the HAProxy that is installed. varnishtest runs them, of which vtest is a copy.
#
#   haproxy.sh SUITES RESULTS    in a folder of its own
set -uo pipefail
suites=$1 results=$2

cp -r "$suites/haproxy/reg-tests" "$suites/haproxy/scripts" .
# Unix sockets are there, and have short names.
TMPDIR=$(mktemp -d /run/XXXXXX)
export TMPDIR VTEST_PROGRAM=/usr/bin/varnishtest HAPROXY_PROGRAM=/usr/sbin/haproxy
shift 2
sh scripts/run-regtests.sh --j 4 --v "$@" >log 2>&1
cat log
sed -nE \
    -e 's/^#    top  TEST ([^ ]*) passed .*/ok \1/p' \
    -e 's/^#    top  TEST ([^ ]*) FAILED .*/failed \1/p' \
    -e 's/^#    top  TEST ([^ ]*) skipped .*/skipped \1/p' log >"$results"
echo 'end .' >>"$results"
