#!/usr/bin/env bash
# The part of socat's test.sh that is about TCP, of the socat that is installed.
#
#   socat.sh SUITES RESULTS    in a folder of its own
set -uo pipefail
suites=$1 results=$2
scripts=$(realpath "$(dirname "$0")")

cp -r "$suites/socat" .
cd socat || exit 1
export SOCAT=/usr/bin/socat TMPDIR=/run
# It waits for listeners that the kernel lists. Those of the split stack it finds by their ports.
if [ -n "${SPLITWAY_LISTEN-}" ]; then
    sed -i -E 's/\$SS -(4|6|l) .*-n -t( -l)?/& $port/' test.sh
    mkdir bin
    install -m 755 "$scripts/listeners.py" bin/ss
    export PATH=$PWD/bin:$PATH
fi
# One that is known, where the suite would search for primes for minutes.
openssl genpkey -quiet -genparam -algorithm DH -pkeyopt group:ffdhe2048 -out testcert.dh
# A session of its own: it writes to a terminal, if there is one. Answers have a second, and not a tenth of one.
setsid bash test.sh -t 1 %tcp% %tcp4% %tcp6% 2>&1 | sed -u 's/\x1b\[[0-9;]*m//g' | tee log | sed -unE \
    -e 's/^test +[0-9]+ ([A-Za-z0-9_]+): .*OK$/ok \1/p; t' \
    -e 's/^test +[0-9]+ ([A-Za-z0-9_]+): .*FAILED.*/failed \1/p; t' \
    -e 's/^test +[0-9]+ ([A-Za-z0-9_]+): .*/skipped \1/p' >>"$results"
cat log
echo 'end .' >>"$results"
