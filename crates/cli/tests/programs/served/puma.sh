start() {
    cat >config.ru <<'END'
run lambda { |env|
  body = env['REQUEST_METHOD'] == 'POST' ? env['rack.input'].read : File.binread(ENV['ROOT'] + env['PATH_INFO'])
  [200, { 'Content-Length' => body.bytesize.to_s }, [body]]
}
END
    exec puma --workers 2 --threads 16:16 --bind "tcp://0.0.0.0:$PORT" --pidfile "$WORK/server.pid" --environment production config.ru
}
check() {
    # It gives up requests whose client has ended its direction.
    ask parallel keep_alive half_close_ends slow_reader upload
    # It starts its workers one after another again.
    local parent before
    parent=$(cat server.pid)
    before=$(children "$parent")
    kill -USR1 "$parent"
    until_true replaced "$parent" "$before"
    ask parallel
    kill_children "$parent"
    until_true ask responds
    ask parallel
}
