#!/usr/bin/env bash
# Sources the files that HETERO_RL_SETUP names, separated by colons, then becomes the command: signals reach it directly.
set -e
IFS=: read -ra files <<<"${HETERO_RL_SETUP:-}"
for file in "${files[@]}"; do
    # shellcheck disable=SC1090 the files are the vendor's, named by the backend package
    [ -f "$file" ] && source "$file"
done
exec "$@"
