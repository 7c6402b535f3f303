#!/bin/sh
# Runs the broker in the foreground: brokerd --config /etc/brokerd/brokerd.toml. The options are those of
# "twistd brokerd".
exec /usr/lib/brokerd/bin/twistd -n --pidfile= brokerd "$@"
