# $style is the scheduling policy: the first process accepts for all (`rr`), or each does (`none`).
start() { NODE_CLUSTER_SCHED_POLICY=$style exec node "$here/cluster.js" "$ROOT" "$PORT" "$WORK/server.pid"; }
check() {
    ask parallel keep_alive half_close half_close_amid slow_reader upload
    kill_children "$(cat server.pid)"
    until_true ask responds
    ask parallel
}
