start() {
    printf 'listener %s 0.0.0.0\nallow_anonymous true\nuser nobody\nmax_queued_messages 0\n' "$PORT" >mosquitto.conf
    exec mosquitto -c "$WORK/mosquitto.conf"
}
# A message of a file, which eight subscribers get, by each quality of service.
check() {
    local quality number all name
    for quality in 0 1 2; do
        for name in 10 20000 500000 3000000; do
            mosquitto_pub -h "$HOST" -p "$PORT" -q "$quality" -r -t "of/$quality/$name" -f "$ROOT/$name"
            all=()
            for number in {1..8}; do
                mosquitto_sub -h "$HOST" -p "$PORT" -q "$quality" -t "of/$quality/$name" -C 1 -W 20 -N >"$number.got" & all+=($!)
            done
            for number in "${all[@]}"; do wait "$number" || fail "no message"; done
            for number in {1..8}; do same "$number.got" "$ROOT/$name"; done
        done
    done
}
