#!/usr/bin/env bash
# Builds the image of deploy/Dockerfile without a container engine, and tries it: starts it, appends, checks its
# health as the image says, stops it, starts it again, reads.
#
#   scripts/try_image.sh BASE [WHEEL]
#
# BASE is a folder with a Debian that has python3, python3-venv and, without WHEEL, gcc and python3-dev:
#   debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm BASE
# WHEEL is a file in dist/. It takes root, and Debian's packages buildah and debootstrap.
set -euo pipefail
base=${1:?folder of a Debian} package=${2:-.}
cd "$(dirname "$0")/.."
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
store=$(mktemp -d) && trap 'rm -rf "$store"' EXIT
buildah() { command buildah --root "$store/root" --runroot "$store/run" "$@"; }
say() { printf '\n== %s\n' "$*"; }

say "base"
container=$(buildah from scratch)
buildah add --quiet "$container" "$base" /
buildah commit --quiet --rm "$container" localhost/base

say "build"
buildah build --quiet --format docker --network host --build-arg BASE=localhost/base \
    --build-arg PACKAGE="$package" --file deploy/Dockerfile --tag localhost/millstream .

inspect() { buildah inspect --type image --format "{{ .Docker.Config.$1 }}" localhost/millstream; }
say "user $(inspect User), health check $(inspect Healthcheck.Test), entry point $(inspect Entrypoint)"
[[ $(inspect User) == 6455:6455 && $(inspect Healthcheck.Test) == "[CMD millstream health]" ]]
read -r -a entry <<<"$(inspect Entrypoint | tr -d '[]')"

container=$(buildah from localhost/millstream)
inside() { buildah run "$container" -- "$@"; }
wait_until_healthy() { for _ in {1..100}; do inside millstream health 2>/dev/null && return; sleep 0.2; done; return 1; }
request() { inside /opt/millstream/bin/python -c \
    'import sys, redis; print(redis.Redis(port=6455, decode_responses=True).execute_command(*sys.argv[1:]))' "$@"; }
inside id
! inside touch /etc/file 2>/dev/null
for turn in 1 2; do
    say "run, turn $turn"
    inside "${entry[@]}" --maxclients 500 &
    wait_until_healthy
    request XADD s '*' turn "$turn"
    [[ $(request XLEN s) == "$turn" && $(request CONFIG GET dir) == *"/data"* ]]
    inside millstream backup "/data/backup-$turn"
    request SHUTDOWN >/dev/null 2>&1 || true
    wait %1
done
say "the image works"
