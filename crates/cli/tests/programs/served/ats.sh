# Apache Traffic Server, in front of a server.
start() {
    mkdir -p ats/{etc,run,log,cache}
    cp -r /etc/trafficserver/. ats/etc/
    cat >ats/runroot.yaml <<END
prefix: /usr
exec_prefix: /usr
bindir: /usr/bin
sbindir: /usr/sbin
sysconfdir: $WORK/ats/etc
datadir: $WORK/ats/cache
includedir: /usr/include
libdir: /usr/lib/trafficserver
libexecdir: /usr/lib/trafficserver/modules
localstatedir: $WORK/ats/run
runtimedir: $WORK/ats/run
logdir: $WORK/ats/log
cachedir: $WORK/ats/cache
END
    cat >ats/etc/records.config <<END
CONFIG proxy.config.http.server_ports STRING $PORT:ip-in=0.0.0.0
CONFIG proxy.config.admin.user_id STRING #-1
CONFIG proxy.config.exec_thread.autoconfig.enabled INT 0
CONFIG proxy.config.exec_thread.limit INT 4
CONFIG proxy.config.log.logging_enabled INT 0
CONFIG proxy.config.url_remap.pristine_host_hdr INT 1
END
    echo "map / http://$BACKEND/" >ats/etc/remap.config
    echo "$WORK/ats/cache 64M" >ats/etc/storage.config
    exec traffic_server --run-root="$WORK/ats/runroot.yaml"
}
check() { ask once parallel keep_alive half_close half_close_amid slow_reader upload; }
