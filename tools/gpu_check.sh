#!/usr/bin/env bash
# Proof and figures on a machine with a GPU: tools/gpu_check.sh STEP WHEEL [OUT]. The steps, of less than ten minutes each:
#   correctness   tests/cuda/test_cuda.py
#   figures       benches/gpu.py
#   sanitize      compute-sanitizer's memcheck and racecheck on those tests that are small enough
#
# Needs python with torch, numpy and pytest; no network, no Rust. The wheel is put beside the present torch, in a folder of its
# own. Each test function and each kind of work has a process of its own, which is ended when its time is over: after an error
# on the device nothing else runs in its process. Everything runs, whatever fails before it; the exit status is 1 if
# something did. OUT (default: benches/results) gets STEP.log, process by process as they end, and <gpu name>.json.
set -uo pipefail
cd "$(dirname "$0")/.."
step=${1:?correctness, figures or sanitize}
wheel=$(realpath "${2:?the wheel}")
mkdir -p "${3:-benches/results}"
out=$(realpath "${3:-benches/results}")
log=$out/$step.log
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
python3 -m pip install --quiet --no-deps --no-index --target "$site" "$wheel" || exit 1
export PYTHONPATH=$site:tests  # tests/cuda imports helpers that stand in tests/
running=0 failed=0
python3 -c 'import peaccel, torch
print(peaccel.build_info(), torch.__version__)
assert torch.cuda.is_available(), "torch sees no GPU here"' 2>&1 | tee "$log" || failed=1

# LIMIT NAME COMMAND...: a command in at most LIMIT seconds, and what is left of the ten minutes; what it says goes to the log
# when it has ended, the end of it here as well.
limited() {
    local limit=$1 name=$2 left=$((570 - SECONDS)) said status
    shift 2
    limit=$((left < 1 ? 1 : left < limit ? left : limit))
    said=$(timeout --kill-after=5 "$limit" "$@" 2>&1)
    status=$?
    [[ $status != 124 ]] || said+=$'\n'"ended after $limit seconds"
    (
        flock 9
        printf '== %s: exit status %s\n%s\n' "$name" "$status" "$said" >> "$log"
        printf '== %s: exit status %s\n%s\n' "$name" "$status" "$(tail -n $((status ? 30 : 1)) <<< "$said")"
    ) 9> "$site/lock"
    return "$status"
}

# The same in the background, beside at most three others: their time goes to Python's start and to the CPU's results.
start() {
    if ((running == 4)); then
        wait -n || failed=1
        running=3
    fi
    limited "$@" &
    running=$((running + 1))
}

# Without the tests' own configuration, which turns warnings of whatever torch is here into errors. What fails after an error
# that sticks says nothing.
pytest=(python3 -m pytest -q --tb=short --maxfail=10 --noconftest -p no:cacheprovider -o filterwarnings=)
case $step in
correctness)
    for test in $(sed -n 's/^def \(test_[a-z0-9_]*\).*/\1/p' tests/cuda/test_cuda.py); do
        start 200 "$test" "${pytest[@]}" "tests/cuda/test_cuda.py::$test"
    done
    ;;
sanitize)
    # Without errors of the driver's functions: they become exceptions, but for the search of the image that has a kernel.
    sanitizer=(compute-sanitizer --report-api-errors no --error-exitcode 1)
    few='float32 and (mls or hib)'
    for tool in memcheck racecheck; do
        for tests in order_of_ties out_of_range draws in_small 48_kb "every_verb and $few" "test_gradients and $few"; do
            start 200 "$tool: $tests" "${sanitizer[@]}" --tool "$tool" "${pytest[@]}" tests/cuda/test_cuda.py -k "$tests"
        done
    done
    ;;
figures)
    for work in rerank search bessel sampling all_pairs; do
        limited 120 "$work" python3 -m benches.gpu --only "$work" --out "$out" || failed=1
    done
    ;;
*)
    echo "no step $step: expected correctness, figures or sanitize" >&2
    exit 2
    ;;
esac
while ((running > 0)); do
    wait -n || failed=1
    running=$((running - 1))
done
exit $failed
