# Everything here sets itself up: it needs rustup, cargo, make, python3 and a C compiler, nothing as root. The
# chart's tests also need pip; the cluster and the stories told on it need Go and root.
# `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Where tools that the project builds for itself are kept.
CACHE ?= $(HOME)/.cache/dracpu
DENY_VERSION := 0.20.2
DENY := $(CACHE)/tools/bin/cargo-deny
FUZZ_VERSION := 0.13.1
FUZZ := $(CACHE)/tools/bin/cargo-fuzz
# So long each target is fuzzed; which ones: all, or those that are named.
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(notdir $(wildcard tests/fuzz/corpus/*))
TOOLCHAIN := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
ifndef DRACPU_COMMIT
# Once: a build takes minutes, in which somebody may commit.
DRACPU_COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null)
endif

# The release build. Paths of this machine are taken out of the binary: the same sources give the same bytes.
ARCH ?= amd64
IMAGE ?= dracpu:$(VERSION)
ifeq ($(ARCH),amd64)
MUSL := x86_64-unknown-linux-musl
CROSS_CC := cc
CROSS_PACKAGE := build-essential
RELEASE := $(TARGET_DIR)/release
else ifeq ($(ARCH),arm64)
MUSL := aarch64-unknown-linux-musl
CROSS_CC := aarch64-linux-gnu-gcc
CROSS_PACKAGE := gcc-aarch64-linux-gnu
RELEASE := $(TARGET_DIR)/release-arm64
else
$(error ARCH is amd64 or arm64, not $(ARCH))
endif
MUSL_VAR := $(subst -,_,$(MUSL))
UPPER_VAR := $(shell echo $(MUSL_VAR) | tr a-z A-Z)
# The last prefix that fits counts: generated code lies in the target directory, wherever that is.
REMAP := --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=/cargo --remap-path-prefix=$(CURDIR)=/dracpu \
	--remap-path-prefix=$(abspath $(TARGET_DIR))=/target
# The toolchain's own linker: another machine's may know no musl. Relocations are packed and functions that are
# equal byte for byte are kept once: a twelfth of the binary.
LINK := -Clink-arg=--pack-dyn-relocs=relr -Clink-arg=--icf=all
# The tables that stacks are unwound by are a third smaller so, and a profiler on a node sees whole stacks.
FRAMES := -Cforce-frame-pointers=yes
RELEASE_ENV = DRACPU_COMMIT=$(DRACPU_COMMIT) CC_$(MUSL_VAR)=$(CROSS_CC) CARGO_TARGET_$(UPPER_VAR)_LINKER=rust-lld CARGO_TARGET_$(UPPER_VAR)_RUSTFLAGS="$(REMAP) $(FRAMES)"

# The driver that the chart's tests ask.
DRACPU_BIN ?= $(TARGET_DIR)/debug/dracpu

.PHONY: help setup demo build image test crash stories soak-claims fuzz test-languages chart-test e2e e2e-guest soak cluster cluster-down lint audit bench llc-acceptance

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

setup: ## install the pinned Rust toolchain and the WebAssembly target
	@for tool in rustup $(CARGO) python3 cc; do command -v $$tool >/dev/null \
		|| { echo "make: $$tool is missing; on Debian: apt-get install build-essential python3, and rustup from its own page" >&2; exit 1; }; done
	@rustup run $(TOOLCHAIN) rustc --version >/dev/null 2>&1 && rustup target list --installed | grep -qx wasm32-unknown-unknown \
		|| rustup toolchain install $(TOOLCHAIN) --profile minimal --component rustfmt,clippy --target wasm32-unknown-unknown --no-self-update

demo: setup ## the whole story on an embedded node: from claims to pinned containers
	$(CARGO) build --quiet --workspace --bins
	$(TARGET_DIR)/debug/demo

build: setup ## the release build, static: target/release/dracpu (ARCH=arm64 for the other one: target/release-arm64)
	@rustup target list --installed | grep -qx $(MUSL) || rustup target add $(MUSL)
	@command -v $(CROSS_CC) >/dev/null || { echo "make: $(CROSS_CC) is missing; on Debian: apt-get install $(CROSS_PACKAGE)" >&2; exit 1; }
	$(RELEASE_ENV) $(CARGO) rustc --release --locked --target $(MUSL) -p dracpu --bin dracpu -- $(LINK)
	@mkdir -p $(RELEASE)
	cp $(TARGET_DIR)/$(MUSL)/release/dracpu $(RELEASE)/dracpu

image: build ## the container image as an OCI archive: target/dracpu-$(ARCH).tar
	python3 host/image/oci_archive.py --binary $(RELEASE)/dracpu --arch $(ARCH) --name $(IMAGE) --version $(VERSION) \
		--revision "$(DRACPU_COMMIT)" --output $(TARGET_DIR)/dracpu-$(ARCH).tar

# Binaries and tests in one call, so that the tests find the daemon that belongs to them.
test: setup ## every test that needs no root
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --workspace

# Ten thousand kills take less than an hour; `make test` has three hundred.
crash: export KILLS ?= 10000
crash: export SEED ?=
crash: setup ## kill the driver at every marked point and at random, and report (KILLS=n, SEED=s)
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --workspace --test crash -- --nocapture

stories: export STORIES ?= 3000
stories: export STORIES_ON_SOCKETS ?= 50
stories: export SEED ?= 1
stories: setup ## many random stories, each step held against a model (STORIES=how many, STORIES_ON_SOCKETS, SEED=the first one's)
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --workspace --test stories --test stories_on_sockets -- --nocapture

soak-claims: export SOAK_CLAIMS ?= 1000000
soak-claims: export SOAK_CLAIMS_ON_SOCKETS ?= 20000
soak-claims: setup ## a million claims that come and go, 20,000 of them over sockets: memory, descriptors and latency stay flat
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --workspace --test soak -- --nocapture --test-threads=1

# With the release build: another one compiles these components for minutes, and in more memory.
test-languages: export DRACPU_CACHE := $(CACHE)
test-languages: export DRACPU_BIN := $(abspath $(RELEASE))/dracpu
test-languages: build ## strategies in other languages: built, tried as every other, within a container's memory (fetches their tools; as root, slow)
	tests/tools/other_languages.sh $(abspath $(TARGET_DIR))/languages
	DRACPU_PYTHON_COMPONENT=$(abspath $(TARGET_DIR))/languages/spread-over-caches/spread-over-caches.wasm \
		$(CARGO) test --workspace --test memory_limits -- --nocapture

chart-test: setup ## the Helm chart: what it renders and refuses, and what the driver that is built says to it
	@[ -x $(DRACPU_BIN) ] || $(CARGO) build --workspace --bins --tests
	DRACPU_CACHE=$(CACHE) DRACPU_BIN=$(DRACPU_BIN) python3 tests/chart/test_chart.py

lint: setup $(DENY) ## formatting, clippy, docs, dependency rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	@tests/tools/check_dependencies.sh
	$(DENY) --workspace check --hide-inclusion-graph licenses bans sources

audit: $(DENY) ## known vulnerabilities in dependencies (fetches the advisory database)
	$(DENY) --workspace check advisories

# The image's name on the node. The soak is one story, on one runtime, that takes longer than in e2e.
e2e e2e-guest soak: IMAGE := localhost/dracpu:e2e
e2e-guest: export GUEST := 1
e2e-guest: export RUNTIMES ?= containerd-2.4
soak: STORIES := nothing_happens_when_nothing_changes
soak: export SOAK := 300
soak: export RUNTIMES := containerd-2.4
e2e: ## the stories of tests/cluster/e2e on real Kubernetes nodes, one for each runtime (as root; STORIES=name tells one)
e2e-guest: ## the stories that need more CPUs, on an emulated node with eight and two NUMA nodes (as root, slow)
soak: ## five minutes on a real node in which nothing changes and the driver must do nothing (as root; SOAK=seconds)
e2e e2e-guest soak: image
	$(CARGO) build --workspace --bins --tests
	tools="$$(DRACPU_CACHE=$(CACHE) python3 tests/tools/get_helm.py)"; \
	CACHE=$(CACHE) IMAGE=$(IMAGE) ARCHIVE=$(TARGET_DIR)/dracpu-$(ARCH).tar HELM=$$tools/helm KUBECTL=$$tools/kubectl \
		COMPONENT="$$(ls -t $(TARGET_DIR)/debug/build/dracpu-tests-*/out/highest-first.wasm | head -1)" \
		tests/cluster/e2e.sh $(STORIES)

cluster: ## a real one-node Kubernetes to play with; stays up (as root; RUNTIME=containerd-2.1 for the older runtime)
	@CACHE=$(CACHE) tests/cluster/cluster.sh up

cluster-down: ## take it down, with all that it left anywhere
	@CACHE=$(CACHE) tests/cluster/cluster.sh down

# With the address sanitizer, which needs a nightly compiler. What is found beyond the corpus in the repository is kept
# beside the build, for the next run.
fuzz: setup $(FUZZ) ## every fuzz target for a minute (FUZZ_SECONDS=n; FUZZ_TARGETS=name for one; needs a C++ compiler)
	@rustup run nightly rustc --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal --no-self-update
	@for target in $(FUZZ_TARGETS); do \
		echo "== $$target"; \
		found=$(abspath $(TARGET_DIR))/fuzz/corpus/$$target; mkdir -p "$$found"; \
		CARGO_TARGET_DIR=$(abspath $(TARGET_DIR))/fuzz rustup run nightly $(FUZZ) fuzz run --fuzz-dir tests/fuzz/targets $$target \
			"$$found" tests/fuzz/corpus/$$target -- -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1; \
	done

bench: setup ## criterion benchmarks: machines, the algorithm, components beside native code and the original
	$(CARGO) bench --workspace --bench '*'

# With the optimisation of components, which the strategies otherwise run as.
llc-acceptance: setup ## how good llc-first is, held against what is demanded of it (takes minutes; ARGS=quick: a first look)
	$(CARGO) bench --profile guest -p dracpu-strategy-llc-first --bench acceptance -- $(ARGS)

$(DENY):
	$(CARGO) install cargo-deny --version $(DENY_VERSION) --locked --debug --no-default-features --root $(CACHE)/tools

$(FUZZ):
	$(CARGO) install cargo-fuzz --version $(FUZZ_VERSION) --locked --debug --root $(CACHE)/tools
