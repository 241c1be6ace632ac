# In front of a server, as what answers for it.
start() {
    cat >squid.conf <<END
http_port 0.0.0.0:$PORT accel defaultsite=x
cache_peer ${BACKEND%:*} parent ${BACKEND#*:} 0 no-query originserver
http_access allow all
cache_effective_user proxy
cache_mem 64 MB
maximum_object_size_in_memory 8 MB
access_log stdio:$WORK/access.log
cache_log $WORK/cache.log
pid_filename $WORK/squid.pid
coredump_dir $WORK
visible_hostname x
pinger_enable off
shutdown_lifetime 1 seconds
END
    chmod 777 "$WORK"
    exec squid -N -f "$WORK/squid.conf"
}
listens_again() { [ "$(grep --count "Accepting reverse-proxy" cache.log)" = 2 ]; }
check() {
    # Once files are cached, no reader waits for another.
    ask once parallel keep_alive half_close_ends slow_reader upload
    # Its listeners are closed for a moment.
    kill -HUP "$(cat squid.pid)"
    until_true listens_again
    ask parallel
}
