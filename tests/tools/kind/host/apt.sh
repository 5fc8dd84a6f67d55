# Install Debian packages, waiting for other installations; sourced by docker.sh.

apt_seconds=${APT_SECONDS:-600} # an unattended upgrade may take minutes

# Run apt-get and wait for its locks; `update` and `install` use different ones.
apt_get() {
    local said until=$((SECONDS + apt_seconds))
    while ! said=$(LC_ALL=C DEBIAN_FRONTEND=noninteractive apt-get -q "$@" 2>&1); do
        if [[ $said != *"Could not get lock"* && $said != *"Unable to lock"* ]] || ((SECONDS >= until)); then
            echo "$said" >&2
            return 1
        fi
        sleep 2
    done
    echo "$said"
}
