# $style is how it waits for clients that are idle.
start() {
    mkdir cache
    exec varnishd -F -a "0.0.0.0:$PORT" -b "$BACKEND" -n "$WORK/cache" -W "$style" -s malloc,64m -j none -P "$WORK/varnish.pid"
}
check() {
    ask parallel keep_alive half_close half_close_amid slow_reader upload
    # Its child, which has the sockets, is another's work once it is gone.
    kill_children "$(cat varnish.pid)"
    until_true ask responds
    ask parallel
}
