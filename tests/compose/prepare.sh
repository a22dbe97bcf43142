#!/usr/bin/env bash
# What `make test-compose` needs before it can work without a network:
#
#     prepare.sh base FILE        the programs of an engine, with apt on Debian, and the root of a small Debian as a tar archive
#     prepare.sh wheels DIR PIP   every wheel that the CPU images and the vendors' workers install
#
# Where something cannot be had this ends well and says why; the tests then skip with their reason.
set -euo pipefail
SUITE=bookworm SUITE_PYTHON=3.11

give_up() {
    echo "tests/compose: $1" >&2
    exit 0
}

base() {
    [ "$(id -u)" = 0 ] || give_up "a Docker engine of the test's own needs root"
    if ! command -v dockerd mmdebstrap ip tc >/dev/null; then
        command -v apt-get >/dev/null || give_up "install dockerd, mmdebstrap and iproute2 first"
        apt-get update -qq
        # Debian starts no service here that was not asked for: policy-rc.d refuses, or there is no init.
        DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends docker.io mmdebstrap iproute2 iptables >&2 ||
            give_up "docker.io, mmdebstrap and iproute2 cannot be installed"
    fi
    mkdir -p "$(dirname "$1")"
    mmdebstrap --quiet --variant=minbase --include=python3-venv,ca-certificates "$SUITE" "$1.part" >&2 ||
        give_up "no base image: mmdebstrap failed"
    mv "$1.part" "$1"
}

wheels() {
    local python="${2%/pip}/python"
    [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$SUITE_PYTHON" ] ||
        give_up "wheels are made by Python $SUITE_PYTHON, which $SUITE has; $python is another"
    mkdir -p "$1"
    "$python" -m pip --disable-pip-version-check wheel --quiet --wheel-dir "$1" --constraint constraints.txt \
        '.[trainer,metrics]' ./backends/cpu 'hatchling>=1.27' || give_up "not every wheel can be had"
    # What the vendors' images hold in another version than the trainer's.
    "$python" -m pip --disable-pip-version-check wheel --quiet --wheel-dir "$1" \
        "$(grep --no-filename '^numba==' backends/*/image-constraints.txt | sort -u)" || give_up "not every wheel can be had"
    rm -f "$1"/hetero_rl*.whl
    touch "$1/.complete"
}

"$@"
