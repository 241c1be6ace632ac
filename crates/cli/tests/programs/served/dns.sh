# What is asked of a server of names over TCP: an answer that is larger than a datagram, and many, side by side and by one connection.
dns_query() { dig +tcp +tries=1 +time=10 -p "$PORT" "@$HOST" "$@"; }
dns_check() {
    local number all=()
    for number in {1..200}; do printf '"%0200d"\n' "$number"; done | sort >wanted
    for number in {1..16}; do
        dns_query +short TXT big.test >"$number.answer" & all+=($!)
    done
    for number in "${all[@]}"; do wait "$number" || fail "no answer"; done
    for number in {1..16}; do
        sort "$number.answer" >"$number.got"
        same "$number.got" wanted
    done
    for number in {1..90}; do echo "host$number.test A"; done >queries
    seq --format '10.0.0.%.0f' 90 >wanted
    dns_query +keepopen +short -f queries >got
    same got wanted
}
