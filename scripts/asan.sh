#!/usr/bin/env bash
# Runs tests/unit on modules compiled with AddressSanitizer; with `--fuzz TARGET OPTION...`, a fuzz
# target (tests/fuzz). The modules are compiled in a copy of the sources, build/asan, which is put in
# PYTHONPATH; those in place are not changed.
#
# A fuzz target compiles only the modules through which its bytes go (`checked`). It uses the others as
# `make build` has made them: their memory is checked, too, when one of the compiled modules or the C
# library touches it. C code that Cython has made is copied, and replaced only if it is too old.
#
# PYTHONMALLOC=malloc: the sanitizer then checks every Python object, not only whole arenas.
# detect_leaks=0: an interpreter never frees all its memory. allocator_may_return_null=1: tests run out of
# memory on purpose (tests/unit/test_short_memory.py). The tests in `without` read files that are
# not in the copy, or import libraries in C++, which cannot be loaded after the sanitizer for C.
# --capture sys: the sanitizer writes its report to the file descriptor and ends the process.
set -euo pipefail
cd "$(dirname "$0")/.."

checked=()  # all modules
others=--exclude=*.so
copy=build/asan
if [ "${1:-}" = --fuzz ]; then
    copy=build/asan-fuzz
    others=
    folders="storage/dump storage/blocks"
    [ "${2:-}" = rdb ] || folders="$folders storage/log storage/streams commands/xstream server/protocol commands/runtime"
    for source in $(find $folders -name '*.pyx' | sort); do
        source=${source%.pyx}
        checked+=("${source//\//.}")
        others+=" --exclude=$source.*.so"
    done
fi
mkdir -p $copy
rm -rf $copy/tests
# Time stamps are preserved, so a second run compiles only changed modules.
# shellcheck disable=SC2086
tar --create $others --exclude=__pycache__ \
    src server storage commands pipeline cdc client tools dashboard scripts tests docs bench $(ls README.md 2>/dev/null) pyproject.toml setup.py | tar --extract --directory $copy

bin=$PWD/.venv/bin
cd $copy
flags="-O1 -g1 -fsanitize=address -fno-omit-frame-pointer -fno-strict-aliasing"
CFLAGS=$flags LDFLAGS=-fsanitize=address "$bin/python" scripts/compile.py "${checked[@]}"

export PYTHONPATH=$PWD/src PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
without=()
for name in tidy shape links docs site package bench bench_spark; do
    without+=(--ignore "tests/unit/test_$name.py")
done
export LD_PRELOAD
LD_PRELOAD=$(${CC:-cc} -print-file-name=libasan.so)
if [ "${1:-}" = --fuzz ]; then
    exec "$bin/python" -m tests.fuzz "${@:2}"
fi
"$bin/pytest" "${@:-tests/unit}" "${without[@]}" --timeout 600 --capture sys
