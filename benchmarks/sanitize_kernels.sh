#!/bin/bash
# Runs the kernel tests on a build with AddressSanitizer and UndefinedBehaviorSanitizer (needs GCC, CMake, nanobind).
# Usage: benchmarks/sanitize_kernels.sh [python] [pytest arguments ...]
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD
python=${1:-python}
shift || true
view=$top/.build/sanitize/view
rm -rf "$view"
mkdir -p "$view/ramet/kernels"
for path in ramet/*; do ln -s "$top/$path" "$view/ramet/"; done
for folder in radix runtime frontend_lang; do ln -s "$top/$folder" "$view/ramet/$folder"; done
for path in kernels/*; do
    case $path in *.so) ;; *) ln -s "$top/$path" "$view/ramet/kernels/" ;; esac
done
executable=$("$python" -c 'import sys; print(sys.executable)')
cmake -S . -B .build/sanitize/cmake -DCMAKE_BUILD_TYPE=Debug -DRAMET_SANITIZE=ON -DPython_EXECUTABLE="$executable" > /dev/null
cmake --build .build/sanitize/cmake -j 2 > /dev/null
cp .build/sanitize/cmake/_cpu*.so "$view/ramet/kernels/"
# The interpreter itself never frees some memory, and allocates with its own allocator unless told otherwise.
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 PYTHONMALLOC=malloc
export LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)"
PYTHONPATH=$view exec "$python" -P -m pytest -q -x -p no:cacheprovider "${@:-tests/test_cpu_ops.py}" 
