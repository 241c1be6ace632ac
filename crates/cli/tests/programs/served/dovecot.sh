start() {
    cat >dovecot.conf <<END
base_dir = $WORK/base
state_dir = $WORK/state
log_path = $WORK/log
protocols = imap
listen = 0.0.0.0
ssl = no
disable_plaintext_auth = no
default_internal_user = dovecot
default_login_user = dovenull
service imap-login {
  inet_listener imap {
    port = $PORT
  }
  inet_listener imaps {
    port = 0
  }
}
passdb {
  driver = static
  args = password=it
}
userdb {
  driver = static
  args = uid=65534 gid=65534 home=$WORK/mail/%u
}
mail_location = maildir:~/maildir
END
    mkdir --mode=777 mail
    chmod 755 "$WORK"
    exec dovecot -F -c "$WORK/dovecot.conf"
}
check() { /usr/bin/python3 "$here/dovecot.py"; }
