#!/usr/bin/env bash
# lighttpd's tests/*.t, of the lighttpd that is installed: perl starts servers and asks them.
#
#   lighttpd.sh SUITES RESULTS    in a folder of its own
set -uo pipefail
suites=$1 results=$2

cp -r "$suites/lighttpd/tests" .
cd tests || exit 1
for responder in fcgi scgi; do
    cc -w -I"$suites/lighttpd/src" -o $responder-responder $responder-responder.c || exit 1
done
export srcdir=. top_builddir=.. LIGHTTPD_EXE_PATH=/usr/sbin/lighttpd
sh ./prepare.sh || exit 1
# Some of the tests are in another order each time.
for test in *.t; do
    perl "./$test" | tee -a log | sed -unE \
        -e "s,^ok ([0-9]+) # skip.*,skipped $test \1,p" \
        -e "s/^ok [0-9]+ - (.*)/ok $test \1/p" \
        -e "s/^not ok [0-9]+ - (.*)/failed $test \1/p" >>"$results"
done
cat log
echo 'end .' >>"$results"
