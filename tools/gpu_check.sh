#!/usr/bin/env bash
# Proof and figures on a machine with a GPU: tools/gpu_check.sh STEP WHEEL [OUT]. The steps, of less than ten minutes each:
#   front         every command, as a user calls it, on the GPU that it finds; needs the packages of the extra [train] too
#   correctness   tests/cuda/test_cuda.py and test_graphs.py
#   figures       benches/gpu.py
#   sanitize      compute-sanitizer's memcheck, racecheck, synccheck and initcheck on those tests that are small enough
#   all           front, correctness and figures, in less than eight minutes; a step whose log says that it ended is left out
#
# Needs python with torch, numpy and pytest; no network, no Rust. The wheel is put beside the present torch, in a folder of its
# own. Each test function and each kind of work has a process of its own, which is ended when its time is over: after an error
# on the device nothing else runs in its process. Everything runs, whatever fails before it; the exit status is 1 if
# something did. OUT (default: benches/results) gets STEP.log, process by process as they end, and <gpu name>.json.
set -uo pipefail
cd "$(dirname "$0")/.."
step=${1:?front, correctness, figures, sanitize or all}
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
if [[ $step == all ]]; then
    for step in front correctness figures; do
        grep -qs '^ended: exit status 0$' "$out/$step.log" || bash "$0" "$step" "$wheel" "$out" || failed=1
    done
    exit $failed
fi
case $step in
front)
    here=$site/front
    mkdir "$here"
    peaccel() { # NAME ARGUMENTS...: a command in the folder whose files the others read
        limited 200 "peaccel $1" env -C "$here" PYTHONPATH="$site" python3 -m peaccel "$@" || failed=1
    }
    sides=(--queries q.npz --gallery g.npz)
    labelled=("${sides[@]}" --query-labels q.npy --gallery-labels g.npy)
    peaccel info
    peaccel train pfe --quick --data digits8 --out run
    peaccel embed --run run --part query --out q.npz --labels-out q.npy
    peaccel embed --run run --part gallery --out g.npz --labels-out g.npy
    peaccel evaluate "${labelled[@]}" --out evaluated
    peaccel choose-score --embeddings g.npz --labels g.npy --out chosen
    peaccel choose-threshold "${labelled[@]}" --wrong 20% --out threshold
    peaccel search "${sides[@]}" --k 20 --out found.npz
    peaccel rerank "${sides[@]}" --candidates found.npz --k 5 --out best.npz
    peaccel fit-head --features g.npz --labels g.npy --method pfe --out head
    peaccel demo --quick --out demo
    ;;
correctness)
    for file in tests/cuda/test_cuda.py tests/cuda/test_graphs.py; do
        for test in $(sed -n 's/^def \(test_[a-z0-9_]*\).*/\1/p' "$file"); do
            start 200 "$test" "${pytest[@]}" "$file::$test"
        done
    done
    ;;
sanitize)
    # Without errors of the driver's functions: they become exceptions, but for the search of the image that has a kernel.
    sanitizer=(compute-sanitizer --report-api-errors no --error-exitcode 1)
    few='float32 and (mls or hib)'
    for tool in memcheck racecheck synccheck initcheck; do
        for tests in no_draws order_of_ties out_of_range draws in_small 48_kb "every_verb and $few" "test_gradients and $few"; do
            start 200 "$tool: $tests" "${sanitizer[@]}" --tool "$tool" "${pytest[@]}" tests/cuda/test_cuda.py -k "$tests"
        done
    done
    ;;
figures)
    for work in first rerank search halves bessel sampling all_pairs losses; do
        limited 120 "$work" python3 -m benches.gpu --only "$work" --out "$out" || failed=1
    done
    ;;
*)
    echo "no step $step: expected front, correctness, figures, sanitize or all" >&2
    exit 2
    ;;
esac
while ((running > 0)); do
    wait -n || failed=1
    running=$((running - 1))
done
echo "ended: exit status $failed" >> "$log"
exit $failed
