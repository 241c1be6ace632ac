start() {
    exec etcd --data-dir "$WORK/data" --listen-client-urls "http://0.0.0.0:$PORT" --advertise-client-urls "http://$HOST:$PORT" \
        --listen-peer-urls http://127.0.0.1:2380 --log-level error --unsafe-no-fsync
}
of_etcd() { ETCDCTL_API=3 etcdctl --endpoints "http://$HOST:$PORT" --command-timeout=20s "$@"; }
value_returns() { # NUMBER FILE
    base64 --wrap=0 "$ROOT/$2" >"$1.wanted"
    of_etcd put "it/$1" <"$1.wanted" >"$1.log"
    of_etcd get --print-value-only "it/$1" | tr -d '\n' >"$1.got"
    same "$1.got" "$1.wanted"
}
check() {
    local number files=(10 20000 500000) all=()
    for number in {0..8}; do value_returns "$number" "${files[number % 3]}" & all+=($!); done
    for number in "${all[@]}"; do wait "$number" || fail "a client has other bytes"; done
}
