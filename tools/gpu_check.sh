#!/usr/bin/env bash
# Proof and figures on a machine with a GPU: tools/gpu_check.sh WHEEL [OUT]
#
# Needs python with torch, numpy and pytest; no network, no Rust. The wheel is put beside the present torch, in a folder of its
# own. Everything runs, whatever fails before it; the exit status is that of the worst. OUT (default: benches/results) gets
# the logs and <gpu name>.json.
set -uo pipefail
cd "$(dirname "$0")/.."
wheel=$(realpath "$1")
out=${2:-benches/results}
mkdir -p "$out"
out=$(realpath "$out")
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install --quiet --no-deps --no-index --target "$site" "$wheel" || exit 1
export PYTHONPATH=$site
status=0

step() {
    local name=$1
    shift
    echo "== $name"
    "$@" 2>&1 | tee "$out/$name.log" | tail -n 15 || status=1
}

python3 -c 'import peaccel, torch; print(peaccel.build_info(), torch.__version__)' || status=1
# Without the tests' own configuration, which turns warnings of whatever torch is here into errors.
step correctness python3 -m pytest -q --noconftest -p no:cacheprovider -o filterwarnings= tests/test_cuda.py
if python3 -c 'import faiss, flint, hypothesis, ml_dtypes, scipy' 2> /dev/null; then
    step on_this_cpu python3 -m pytest -q -p no:cacheprovider -o filterwarnings= -m 'not cuda' tests
else
    echo "== the CPU's tests need faiss, python-flint, hypothesis, ml_dtypes and scipy: not run"
fi
if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck; do
        step "$tool" timeout 240 compute-sanitizer --tool "$tool" --error-exitcode 1 \
            python3 -m pytest -q --noconftest -p no:cacheprovider -o filterwarnings= tests/test_cuda.py \
            -k 'order_of_ties or out_of_range or draws or in_small or (test_every_verb and float32 and (mls or hib))'
    done
else
    echo "== no compute-sanitizer here"
fi
step figures python3 -m benches.gpu --out "$out"
exit $status
