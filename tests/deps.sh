#!/usr/bin/env bash
# Installs the Debian packages that the tests use, where they are missing and we may.
set -euo pipefail
missing=()
have() { command -v "$1" >/dev/null 2>&1; }
postgres() { have postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; }
postgres || missing+=(postgresql)
have mosquitto_pub || missing+=(mosquitto-clients)
have openssl || missing+=(openssl)
have strace || missing+=(strace)
have gnutls-cli || missing+=(gnutls-bin)
have faketime || missing+=(faketime)
have python3 || missing+=(python3)
python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || missing+=(python3-venv)
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ] || ! have apt-get; then
    echo "SKIPPED: tests that need ${missing[*]}; install these packages, or run make deps as root"
    exit 0
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
