# $style is the multi-processing module.
start() {
    local modules=/usr/lib/apache2/modules
    # Apache sends all of a body before it reads what comes back.
    mkdir --mode=777 cgi
    cat >cgi/echo <<'END'
#!/bin/sh
cat >"$0.$$"
printf 'Content-Type: application/octet-stream\r\n\r\n'
cat "$0.$$"
rm "$0.$$"
END
    chmod 755 cgi/echo
    # Threads wait for CGI by a daemon of Apache's.
    local cgi=cgid
    [ "$style" != prefork ] || cgi=cgi
    cat >apache.conf <<END
ServerRoot $WORK
ServerName x
DefaultRuntimeDir $WORK
PidFile apache.pid
ErrorLog error.log
Listen 0.0.0.0:$PORT
User nobody
Group nogroup
LoadModule mpm_${style}_module $modules/mod_mpm_$style.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule alias_module $modules/mod_alias.so
LoadModule cgi_module $modules/mod_$cgi.so
StartServers 2
MaxRequestWorkers 75
EnableSendfile On
DocumentRoot $ROOT
ScriptAlias /echo $WORK/cgi/echo
<Directory />
Require all granted
</Directory>
END
    [ "$cgi" = cgi ] || sed -i "s/LoadModule cgi_/LoadModule cgid_/; \$aScriptSock $WORK/cgid" apache.conf
    exec apache2 -DFOREGROUND -f "$WORK/apache.conf"
}
check() {
    ask parallel keep_alive half_close half_close_amid slow_reader upload
    local master before
    master=$(cat apache.pid)
    before=$(children "$master")
    amid_downloads kill -USR1 "$master"
    until_true replaced "$master" "$before"
    kill_children "$master"
    until_true ask responds
    ask parallel
}
