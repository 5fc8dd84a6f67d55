#!/bin/bash
# Ensure that Docker is running and can start kind's privileged nodes. Otherwise install Debian's packages if they
# are missing and start the daemon, which requires root. Report what is missing if that is not possible.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
log=/var/log/dockerd.log
source "$here/apt.sh"

fail() { echo "docker: $*" >&2; exit 1; }
answers() { docker info > /dev/null 2>&1; }

# A machine whose capability bounding set lacks CAP_SYS_RESOURCE (bit 24) cannot start privileged containers,
# which request all capabilities. A wrapper of runc removes this one; other machines are not changed.
fit_runtime() {
    local bounding=$((16#$(awk '/^CapBnd/ {print $2}' /proc/self/status)))
    if (( bounding >> 24 & 1 )); then return; fi
    [ "$(id -u)" = 0 ] || fail "this machine lacks CAP_SYS_RESOURCE; its remedy (a runtime in /etc/docker) needs root"
    install -m 755 "$here/runc-without-sys-resource" /usr/local/sbin/
    mkdir -p /etc/docker
    [ -s /etc/docker/daemon.json ] || echo '{}' > /etc/docker/daemon.json
    local settings='.runtimes["runc-without-sys-resource"].path = "/usr/local/sbin/runc-without-sys-resource"
        | .["default-runtime"] = "runc-without-sys-resource"'
    if [ "$(jq "$settings" /etc/docker/daemon.json)" = "$(jq . /etc/docker/daemon.json)" ]; then return; fi
    jq "$settings" /etc/docker/daemon.json > /etc/docker/daemon.json.new
    mv /etc/docker/daemon.json.new /etc/docker/daemon.json
    if answers; then kill -HUP "$(cat /var/run/docker.pid)"; fi  # reloads both settings; containers keep running
}

if ! answers; then
    [ "$(id -u)" = 0 ] || fail "it does not answer, and starting it needs root: start it, or join the group docker"
    missing=()
    command -v dockerd > /dev/null || missing+=(docker.io)
    for program in debootstrap jq; do command -v "$program" > /dev/null || missing+=("$program"); done
    if [ "${#missing[@]}" -gt 0 ]; then
        command -v apt-get > /dev/null || fail "missing: ${missing[*]}; install them with this machine's package manager"
        echo "docker: installing ${missing[*]}" >&2
        { apt_get update && apt_get install -y --no-install-recommends "${missing[@]}"; } \
            > "$log.install" 2>&1 || fail "could not install ${missing[*]}: $(tail -3 "$log.install")"
    fi
    fit_runtime
    setsid nohup dockerd > "$log" 2>&1 < /dev/null &
    daemon=$!
    for _ in $(seq 300); do
        if answers; then break; fi
        kill -0 "$daemon" 2> /dev/null || fail "the daemon ended: $(tail -3 "$log")"
        sleep 0.2
    done
    answers || fail "the daemon does not answer after 60 s: $(tail -3 "$log")"
    echo "docker: started, its log is $log" >&2
fi
fit_runtime
