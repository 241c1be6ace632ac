start() {
    cat >start.erl <<END
-module(start).
-export([start/0]).
start() ->
    {ok, _} = application:ensure_all_started(inets),
    {ok, _} = inets:start(httpd, [{port, $PORT}, {bind_address, {0,0,0,0}}, {server_name, "it"}, {server_root, "$WORK"},
        {document_root, "$ROOT"}, {max_clients, 100}, {modules, [mod_get, mod_head]}]).
END
    erlc start.erl
    exec erl -noinput -pa "$WORK" -s start
}
check() { ask parallel keep_alive half_close half_close_amid slow_reader; }
