start() {
    local number
    {
        printf '$ORIGIN test.\n$TTL 60\n@ SOA ns.test. it.test. 1 60 60 60 60\n@ NS ns.test.\nns A 10.0.0.1\n'
        for number in {1..200}; do
            printf 'big TXT "%0200d"\nhost%s A 10.0.0.%s\n' "$number" "$number" "$number"
        done
        # For a transfer of some megabytes.
        for number in {1..10000}; do printf 'many%s TXT "%0200d"\n' "$number" "$number"; done
    } >zone
    cat >nsd.conf <<END
server:
 ip-address: 0.0.0.0@$PORT
 server-count: 2
 username: ""
 zonesdir: "$WORK"
 database: ""
 pidfile: "$WORK/pid"
 xfrdfile: "$WORK/xfrd"
 zonelistfile: "$WORK/zones"
 cookie-secret-file: "$WORK/cookies"
 xfrdir: "$WORK"
 logfile: "$WORK/log"
zone:
 name: test
 zonefile: zone
 provide-xfr: 0.0.0.0/0 NOKEY
END
    exec nsd -d -c "$WORK/nsd.conf"
}
transfers() {
    dns_query AXFR test +onesoa +nocomments +nostats +nocmd >"$1.zone"
    [ "$(grep --count 'TXT' "$1.zone")" = 10200 ] || fail "an incomplete transfer"
}
check() {
    dns_check
    local number all=()
    for number in {1..4}; do transfers "$number" & all+=($!); done
    for number in "${all[@]}"; do wait "$number" || fail "an incomplete transfer"; done
    for number in {1..10000}; do printf 'many%s.test.\t\t60\tIN\tTXT\t"%0200d"\n' "$number" "$number"; done >wanted
    sort wanted | tr -s '\t' >sorted
    for number in {1..4}; do
        grep '^many' "$number.zone" | tr -s '\t' | sort >got
        same got sorted
    done
    kill -HUP "$(cat pid)"
    until_true dns_query host1.test
    dns_check
}
# shellcheck source=/dev/null
. "$here/dns.sh"
