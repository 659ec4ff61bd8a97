#!/usr/bin/env bash
# wait.sh WHAT COMMAND...: runs a command that says little, and every ten seconds says what is being waited for.
set -u
what=$1
shift
start=$SECONDS
echo "$what"
# The sleep must not keep the output open, for which whoever reads it would wait.
(while sleep 10 > /dev/null 2>&1; do echo "$what: $((SECONDS - start)) s"; done) &
clock=$!
trap 'kill "$clock" 2> /dev/null' EXIT
"$@"
