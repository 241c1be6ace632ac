start() {
    local number
    for number in {1..200}; do
        echo "txt-record=big.test,$(printf "%0200d" "$number")"
        echo "host-record=host$number.test,10.0.0.$number"
    done >dnsmasq.conf
    exec dnsmasq --keep-in-foreground --conf-file="$WORK/dnsmasq.conf" --no-resolv --no-hosts --port="$PORT" --user=root \
        --pid-file="$WORK/dnsmasq.pid" --log-facility="$WORK/log"
}
check() { dns_check; }
# shellcheck source=/dev/null
. "$here/dns.sh"
