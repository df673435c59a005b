# Everything here sets itself up: it needs rustup, cargo, make, python3 with pip and a C compiler, nothing as root.
# `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# Where tools that the project builds for itself are kept.
CACHE ?= $(HOME)/.cache/dracpu
DENY_VERSION := 0.20.2
DENY := $(CACHE)/tools/bin/cargo-deny
TOOLCHAIN := $(shell sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
MUSL := x86_64-unknown-linux-musl
# Fetches helm at the first call.
CHART_TEST := DRACPU_CACHE=$(CACHE) python3 tests/chart/test_chart.py

.PHONY: help setup demo build test chart-test lint audit bench

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

setup: ## install the pinned Rust toolchain and the WebAssembly target
	@for tool in rustup $(CARGO) python3 cc; do command -v $$tool >/dev/null \
		|| { echo "make: $$tool is missing; on Debian: apt-get install build-essential python3, and rustup from its own page" >&2; exit 1; }; done
	@rustup run $(TOOLCHAIN) rustc --version >/dev/null 2>&1 && rustup target list --installed | grep -qx wasm32-unknown-unknown \
		|| rustup toolchain install $(TOOLCHAIN) --profile minimal --component rustfmt,clippy --target wasm32-unknown-unknown --no-self-update

demo: setup ## the whole story on an embedded node: from claims to pinned containers
	$(CARGO) build --quiet --workspace --bins
	$(TARGET_DIR)/debug/demo

build: setup ## the release build, static: target/release/dracpu
	@rustup target list --installed | grep -qx $(MUSL) || rustup target add $(MUSL)
	CC_x86_64_unknown_linux_musl=$${CC_x86_64_unknown_linux_musl:-cc} $(CARGO) build --release --target $(MUSL) -p dracpu
	@mkdir -p $(TARGET_DIR)/release
	cp $(TARGET_DIR)/$(MUSL)/release/dracpu $(TARGET_DIR)/release/dracpu

# Binaries and tests in one call, so that the tests find the daemon that belongs to them.
test: setup ## every test that needs no root
	$(CARGO) build --workspace --bins --tests
	$(CARGO) test --workspace
	DRACPU_BIN=$(TARGET_DIR)/debug/dracpu $(CHART_TEST)

chart-test: ## the Helm chart alone; DRACPU_BIN=FILE also asks the driver what it renders
	$(CHART_TEST)

lint: setup $(DENY) ## formatting, clippy, docs, dependency rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --quiet
	@tests/tools/check_dependencies.sh
	$(DENY) --workspace check --hide-inclusion-graph licenses bans sources

audit: $(DENY) ## known vulnerabilities in dependencies (fetches the advisory database)
	$(DENY) --workspace check advisories

bench: setup ## criterion benchmarks
	$(CARGO) bench --workspace

$(DENY):
	$(CARGO) install cargo-deny --version $(DENY_VERSION) --locked --debug --no-default-features --root $(CACHE)/tools
