#!/usr/bin/env bash
# aarch64.sh PYTHON: the tests of the Rust library on an emulated aarch64, and the bits of every kernel there against those here.
#
# PYTHON is an environment with what the tests need. Where rustup and Debian's packages can be had; needs qemu-user-static.
# Everything stays in target/aarch64: Debian's Python for aarch64 too, which is unpacked there and not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
tools=$(dirname "$python")
qemu=$(command -v qemu-aarch64-static) || { echo "aarch64: there is no qemu-aarch64-static (Debian: apt-get install qemu-user-static)"; exit 1; }
folder=$PWD/target/aarch64
export PATH="$tools:$PATH" PEACCEL_CUDA=off CARGO_TARGET_DIR="$folder/cargo"

rustup --quiet target add aarch64-unknown-linux-gnu aarch64-unknown-linux-musl
"$python" -m uv pip install --quiet cargo-zigbuild

# Linked with musl, tests need no other file under the emulator.
CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=$qemu \
	cargo-zigbuild test --quiet --lib --target aarch64-unknown-linux-musl

root=$folder/root
if [ ! -e "$root/usr/bin/python3.11" ]; then
	mkdir -p "$folder"/apt/{state/lists/partial,cache/archives/partial} "$root"
	: > "$folder/apt/state/status"
	options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$folder/apt/state"
		-o Dir::State::status="$folder/apt/state/status" -o Dir::Cache="$folder/apt/cache")
	apt-get "${options[@]}" update
	apt-get "${options[@]}" --yes --download-only --no-install-recommends install python3.11 libstdc++6
	for package in "$folder"/apt/cache/archives/*.deb; do dpkg-deb --extract "$package" "$root"; done
fi

maturin build --release --quiet --zig --target aarch64-unknown-linux-gnu --compatibility manylinux_2_28 --out "$folder/dist"
site=$folder/site
rm -rf "$site"
"$python" -m uv pip install --quiet --target "$site" --python-platform aarch64-unknown-linux-gnu --python-version 3.11 \
	"$(ls -t "$folder"/dist/*.whl | head -1)"

emulated=("$qemu" -L "$root" -E PYTHONPATH="$site:$PWD" "$root/usr/bin/python3.11")
for level in neon baseline; do
	PEACCEL_SIMD=$level "${emulated[@]}" -m benches.counts --bits > "$folder/$level.txt"
done
"$python" -m benches.counts --bits > "$folder/here.txt"
for level in neon baseline; do
	diff "$folder/here.txt" "$folder/$level.txt" || { echo "aarch64: $level has other bits than $(uname -m)"; exit 1; }
done
echo "aarch64: $(wc -l < "$folder/here.txt") calls have the bits of $(uname -m), by neon and by baseline"
