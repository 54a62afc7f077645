#!/usr/bin/env bash
# Runs a command with processes, network, mounts and host names of its own, so that two clusters of the tests live side by side. Where
# the rights for that are missing, the command runs as it is: they are missing for a cluster too, and the tests say so.
#   own_namespaces.sh COMMAND...
set -euo pipefail
own=(unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private)
separate='set -eu
    mkdir -p /run/netns && mount -t tmpfs none /run/netns
    hosts=$(mktemp) && cp /etc/hosts "$hosts" && mount --bind "$hosts" /etc/hosts && rm "$hosts"
    ip link set lo up'
"${own[@]}" bash -c "$separate" 2> /dev/null || exec "$@"
# the shell stays, as process 1, which reaps the daemons of the cluster
exec "${own[@]}" bash -c "$separate; "'"$@" && exit 0 || exit $?' own_namespaces "$@"
