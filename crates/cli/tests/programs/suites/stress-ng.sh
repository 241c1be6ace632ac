#!/usr/bin/env bash
# stress-ng's stressors that are about sockets of TCP, and descriptors.
#
#   stress-ng.sh SUITES RESULTS    in a folder of its own
set -uo pipefail
results=$2

# A number of turns, and not a time: what is slower does as much.
while read -r stressor; do
    # shellcheck disable=SC2086
    if timeout 120 stress-ng $stressor --verify --temp-path . </dev/null; then
        echo "ok $stressor"
    else
        echo "failed $stressor"
    fi >>"$results"
done <<'STRESSORS'
--sock 2 --sock-domain ipv4 --sock-ops 400
--sock 2 --sock-domain ipv6 --sock-ops 400
--sock 2 --sock-domain ipv4 --sock-opts sendmsg --sock-ops 400
--sock 2 --sock-domain ipv4 --sock-opts sendmmsg --sock-ops 400
--epoll 2 --epoll-domain ipv4 --epoll-ops 2000
--epoll 2 --epoll-domain ipv6 --epoll-ops 2000
--dup 2 --dup-ops 2000
STRESSORS
echo 'end .' >>"$results"
