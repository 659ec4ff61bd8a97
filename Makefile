# Every target works on a fresh machine with Python >= 3.11 and a Rust toolchain.
PYTHON ?= python3
BIN := .venv/bin

# Packages are installed without bytecode: it is kept once they are used, or each process would compile torch anew, for seven seconds.
export PYTHONDONTWRITEBYTECODE :=

# A fifth of the processor time of pip, 70 s of 350 for what tests need. It reads UV_DEFAULT_INDEX, not pip's settings.
INSTALL := $(BIN)/python -m uv pip install --quiet

# Versions of a CI run, so that yesterday's commit passes today; elsewhere the newest that pyproject.toml allows.
LOCKED := $(if $(CI),--constraint tools/locked.txt)

# Says every ten seconds that a quiet command is still at it.
WAIT := tools/wait.sh

# CUDA's compiler, where it can be had; kernels are compiled for one target, wheels for all.
ifeq ($(shell uname -sm),Linux x86_64)
NVCC := target/cuda/nvidia/cu13/bin/nvcc
WITH_NVCC := PEACCEL_CUDA=$(or $(PEACCEL_CUDA),require) PEACCEL_NVCC=$(abspath $(NVCC))
CUDA := $(WITH_NVCC) PEACCEL_CUDA_TARGETS=$(or $(PEACCEL_CUDA_TARGETS),90)
endif

.PHONY: help demo test test-all test-reproduction test-rust coverage lock lint lint-rust lint-python train-step fuzz hostile soak mutants bench bench-compare counts counts-update ratios cliffs accuracy recall \
	metrics choosing speakers texts frozen faces kanji novel reproduce docs clean build core core-without-cuda wheel sdist test-memory test-wheel test-aarch64 release-check

help:  ## show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/maturin:
	$(WAIT) "making .venv" $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet uv $$($(PYTHON) tools/requirements.py)

# Beside the environment, where torch keeps other versions of the same packages.
$(NVCC): | $(BIN)/maturin
	$(WAIT) "installing the CUDA compiler" $(INSTALL) --no-deps --target target/cuda \
		nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96

.venv/packages-%: pyproject.toml | $(BIN)/maturin
	$(WAIT) "installing packages" $(INSTALL) $(LOCKED) $$($(PYTHON) tools/requirements.py $*)
	touch $@

core: | $(BIN)/maturin $(NVCC)
	$(CUDA) $(WAIT) "building the core with CUDA" $(BIN)/maturin develop --release --skip-install --quiet

core-without-cuda: | $(BIN)/maturin
	PEACCEL_CUDA=off $(WAIT) "building the core" $(BIN)/maturin develop --release --skip-install --quiet

# What the demo needs and no more. Packages and the core come side by side, as the network leaves the processor free.
.venv/demo: pyproject.toml $(shell find rust -name '*.rs') | $(BIN)/maturin
	$(MAKE) --no-print-directory --jobs 2 .venv/packages-all core-without-cuda
	PEACCEL_CUDA=off $(BIN)/maturin develop --release --quiet
	touch $@

# The environment is made once, and again when what it must hold changes.
.venv/done: pyproject.toml | $(BIN)/maturin
	$(MAKE) --no-print-directory --jobs 2 .venv/packages-dev core
	$(CUDA) $(BIN)/maturin develop --release --quiet
	touch $@ .venv/demo

build: .venv/done core  ## build the Rust core and install the package into .venv

demo: .venv/demo  ## train on real digits and show what reranking by uncertainty gains or loses
	if [ -t 1 ]; then $(BIN)/peaccel demo; else $(WAIT) "running the demo" $(BIN)/peaccel demo; fi

PYTEST := $(BIN)/python -m pytest -q --numprocesses auto --dist worksteal --durations 20

test: build test-rust  ## run the Rust and Python tests, without those that are marked slow (eight minutes)
	$(PYTEST)

test-all: build test-rust wheel  ## run all tests; build the wheel and try it in an environment with numpy alone (an hour)
	$(PYTEST) -m "" tests reproduction/tests
	$(BIN)/python tools/try_wheel.py --only core

test-reproduction: build  ## run the tests of the reproduction, slow ones too
	$(PYTEST) -m "" reproduction/tests

coverage: build  ## run the tests that are not slow and print the share of the package that they reach (ten minutes)
	$(INSTALL) pytest-cov==7.1.0
	$(PYTEST) --cov=peaccel --cov-report=term:skip-covered

lock: | $(BIN)/maturin  ## write the newest versions of what tests need to tools/locked.txt
	$(PYTHON) tools/requirements.py dev | $(BIN)/python -m uv pip compile --quiet --universal --python-version 3.11 \
		--upgrade --no-header --no-annotate --no-emit-index-url --output-file tools/locked.txt -

# Of the library alone: what else cargo would build for it takes minutes and has no tests. In a folder of its own, or the
# library without Python would take the place of the one with it. Not optimised, which checks for overflow and compiles in half of
# the time; nothing of it is kept for a debugger or for the next time.
test-rust:
	CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 cargo test --quiet --lib --target-dir target/test

lint: build  ## check format, types and style
	$(MAKE) --no-print-directory --jobs 2 lint-rust lint-python

# Clippy sees the same Rust with and without kernels for GPUs, which would be compiled once more.
lint-rust:
	cargo fmt --check
	PEACCEL_CUDA=off cargo clippy --release --all-targets --features python --quiet -- -D warnings

# The stub of the core is held against the core apart from the package, all of which would be read with it, for half a minute.
lint-python:
	$(BIN)/ruff check python reproduction tests benches tools examples docs/conf.py
	$(BIN)/ruff format --check python reproduction tests benches tools examples docs/conf.py
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	mkdir -p target/stubs/peaccel
	cp python/peaccel/_core.pyi target/stubs/peaccel/
	touch target/stubs/peaccel/__init__.pyi
	echo peaccel._core.__all__ > target/stubs/allowed
	MYPYPATH=target/stubs $(BIN)/python -m mypy.stubtest --concise --allowlist target/stubs/allowed peaccel._core

reproduce: build  ## run what docs/reproduction.md shows; goes on where it was stopped (hours; FASHION=<folder>: garments too)
	$(BIN)/python -m reproduction --results-out reproduction/results.jsonl --page-out docs/reproduction.md \
		$(if $(FASHION),--fashion-root "$(FASHION)")

fuzz: build  ## make a hundred thousand random calls (five minutes)
	PEACCEL_FUZZ=100000 $(BIN)/python -m pytest -q tests/test_fuzz.py

hostile: build  ## damage a hundred thousand files, and count which are refused, right, wrong, or end the process (five minutes)
	PYTHONPATH=tests $(BIN)/python tests/io/test_damaged_files.py

soak: build  ## watch the memory of searches, training and galleries (an hour; PEACCEL_SOAK=<seconds>)
	$(BIN)/python tools/soak.py

mutants: build  ## plant small mistakes and say which of them no test sees (two hours)
	cargo install --quiet --locked --root target/mutants cargo-mutants
	$(BIN)/python -m pip install --quiet cosmic-ray
	PATH="$(abspath target/mutants/bin):$$PATH" $(BIN)/python tools/mutants.py rust
	$(BIN)/python tools/mutants.py python

bench: build  ## run the asv suite in its quick form
	cd benches && ../$(BIN)/asv machine --yes > /dev/null && ../$(BIN)/asv run --python=same --quick

# A machine of another name or with another kernel would be another line; of another processor it should be.
bench-record: build  ## run the asv suite and keep its results beside this commit's name (half an hour; BENCH=<regex>: a part)
	cd benches && ../$(BIN)/asv machine --yes --machine $(or $(MACHINE),local) --os "$$(uname -s)" --ram 0 > /dev/null \
		&& ../$(BIN)/asv run --python=same --machine $(or $(MACHINE),local) --set-commit-hash "$$(git rev-parse HEAD)" \
			--bench '$(or $(BENCH),.)'

bench-pages: .venv/done  ## draw the kept results as pages, which the site then holds
	cd benches && ../$(BIN)/asv publish

# Commits are built without CUDA into one folder of cargo's; what they are measured with is this environment. At least 20 samples
# of 20 ms: of asv's own number a fault of a factor of 1.3 in a call of 2 ms was not told from chance beside other work.
bench-compare: .venv/done  ## measure HEAD against BASE=<commit> by turns; fails beyond FACTOR=1.15 (BENCH=<regex>: a part)
	@test -n "$(BASE)" || { echo "bench-compare: BASE is missing, expected a commit"; exit 1; }
	cd benches && export PEACCEL_CUDA=off CARGO_TARGET_DIR="$(abspath target/asv)" \
		PEERS="$$(../$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		&& ../$(BIN)/asv machine --yes > /dev/null \
		&& ../$(BIN)/asv continuous --interleave-rounds --factor $(or $(FACTOR),1.15) --bench '$(or $(BENCH),.)' \
			--attribute repeat='(10, 40, 2.0)' --attribute sample_time=0.02 $(BASE) HEAD

counts: build  ## hold the kernels' instruction counts against benches/counts.toml (valgrind; a minute)
	$(BIN)/python -m benches.counts

counts-update: build  ## write the kernels' instruction counts to benches/counts.toml
	$(BIN)/python -m benches.counts --update

ratios: build  ## measure peaccel against its peers, interleaved (a quarter of an hour)
	$(BIN)/python -m benches.ratios --only peers

cliffs: build  ## measure every path beside its neighbour (ten minutes)
	$(BIN)/python -m benches.ratios --only cliffs

accuracy: build  ## print the largest errors of the special functions against arb
	$(BIN)/python -m benches.accuracy

train-step: build  ## measure what each loss costs in a training step (ten minutes)
	$(BIN)/python -m benches.ratios --only train-step

recall: build  ## print what first stages find of the true best ten (three minutes)
	$(BIN)/python -m benches.recall

metrics: build  ## measure MLS as a user metric of USearch and PyNNDescent (three minutes)
	$(BIN)/python -m benches.ratios --only user_metrics

choosing: build  ## print the tables of docs/score-comparison.md
	$(BIN)/python -m reproduction.choosing

speakers: build  ## write the table of speakers in docs/real-embeddings.md (needs espeak-ng and Resemblyzer; half an hour at first)
	$(BIN)/python -W ignore -m reproduction.speakers

texts: build  ## write the tables of docs/real-texts.md (needs two encoders of PyPI, and Debian's archive; an hour at first)
	$(BIN)/python -m reproduction.texts

frozen: build  ## write what heads learn on those texts and speakers (after both); goes on where it was stopped (an hour and a half)
	$(BIN)/python -m reproduction.frozen

faces: build  ## write the tables of docs/lfw.md (LFW=<folder>: photographs; needs dlib's encoder; two hours at first, and goes on where it was stopped)
	LFW="$(LFW)" $(BIN)/python -m reproduction.faces

kanji: build  ## train on printed kanji in typefaces of Debian; goes on where it was stopped (two hours)
	$(BIN)/python -m reproduction.kanji

novel: build  ## tell queries of another data set; goes on where it was stopped (half an hour)
	$(BIN)/python -m reproduction.novel

# maturin finds zig as a module of the python that it finds first.
wheel: .venv/done  ## build the wheel for all machines, with and without a GPU, into dist/
	rm -f dist/*
	$(WITH_NVCC) PATH="$(abspath $(BIN)):$$PATH" $(WAIT) "building the wheel" \
		$(BIN)/maturin build --release --quiet --zig --compatibility manylinux_2_28 --out dist

sdist: | $(BIN)/maturin  ## build the source distribution into dist/
	$(BIN)/maturin sdist --out dist

test-wheel: wheel sdist  ## try wheel and sdist in bare environments, with the oldest and the newest of what they need (a quarter of an hour)
	$(BIN)/python tools/try_wheel.py

# Python's own memory leaks by design; a test's fibers have stacks that the sanitizer does not know.
test-memory: build  ## run the kernels for GPUs on the host under sanitizers: what they read and write lies in memory and is aligned (half an hour)
	LD_PRELOAD=$$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0:handle_segv=0 PEACCEL_SANITIZERS=1 \
		$(BIN)/python -m pytest -n 2 -W ignore tests/cuda -k on_host

test-aarch64: .venv/done  ## on an emulated aarch64: the Rust tests, and the bits of every kernel (five minutes)
	tools/aarch64.sh $(BIN)/python

release-check: test-wheel docs  ## build and try all that a release holds, and print what a person has still to do (an hour)
	$(BIN)/python tools/release_check.py

docs: build  ## build the site into target/docs; every name in it resolves, and every page fits its window (needs chromium)
	$(BIN)/python -m sphinx -q -n -W --keep-going docs target/docs
	$(BIN)/python tools/check_site.py target/docs

clean:  ## remove what was built
	rm -rf .venv target dist runs benches/.asv docs/api/generated docs/examples python/peaccel/*.so
