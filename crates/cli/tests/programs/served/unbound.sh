start() {
    local number
    {
        printf 'server:\n interface: 0.0.0.0\n port: %s\n do-udp: no\n access-control: 0.0.0.0/0 allow\n chroot: ""\n' "$PORT"
        printf ' directory: "%s"\n pidfile: "%s/pid"\n username: nobody\n num-threads: 2\n use-syslog: no\n logfile: "%s/log"\n' \
            "$WORK" "$WORK" "$WORK"
        printf ' module-config: "iterator"\n local-zone: "test." static\n'
        for number in {1..200}; do
            printf ' local-data: %s\n' "'big.test. TXT \"$(printf %0200d "$number")\"'"
            printf ' local-data: "host%s.test. A 10.0.0.%s"\n' "$number" "$number"
        done
    } >unbound.conf
    chmod 777 "$WORK"
    exec unbound -d -c "$WORK/unbound.conf"
}
check() {
    dns_check
    kill -HUP "$(cat pid)"
    until_true dns_query host1.test
    dns_check
}
# shellcheck source=/dev/null
. "$here/dns.sh"
