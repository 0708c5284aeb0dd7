# Tanit. `make help` lists the targets; `make demo` and `make test` need nothing installed by hand
# beside a C compiler, make, git and Rust.

SHELL := /bin/bash
CARGO ?= cargo
TARGET ?= codec
SECONDS_FUZZ ?= 300
VENV := tests/sdk/.venv

.PHONY: help build run demo test test-heavy test-sdk fmt lint docs deny check fuzz deps

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

build: ## the release binary, target/release/tanit
	$(CARGO) build --release --bin tanit

run: ## a broker on the default ports, data in ./tanit-data
	$(CARGO) run --release --bin tanit -- serve

demo: ## a realm, a device over mutual TLS, data in and out, a kill -9 in between
	$(CARGO) build --bin tanit
	$(CARGO) run --example demo

test: deps ## every test that fits in minutes
	$(CARGO) test --locked

test-heavy: deps ## the whole cases, which take minutes to hours
	$(CARGO) test --locked -- --ignored --nocapture --test-threads=1 --skip seeds_of_the_fuzzer

test-sdk: deps $(VENV)/installed ## clients and device SDKs in Python, unchanged, against the binary
	$(CARGO) build --locked --bin tanit
	$(VENV)/bin/python tests/sdk/run.py

$(VENV)/installed: tests/sdk/requirements.txt | deps
	python3 -m venv --clear $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

fmt: ## formats the code
	$(CARGO) fmt

lint: ## clippy, warnings are errors
	$(CARGO) clippy --locked --all-targets -- -D warnings

docs: ## the API documentation, warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --no-deps --document-private-items

deny: ## licences, bans and sources of the dependencies
	@command -v cargo-deny >/dev/null || $(CARGO) install cargo-deny --locked
	$(CARGO) deny --all-features check bans licenses sources

fuzz: ## TARGET=codec SECONDS_FUZZ=300: one fuzz target, for so long
	@command -v cargo-fuzz >/dev/null || $(CARGO) install cargo-fuzz --locked
	mkdir -p fuzz/target/corpus/$(TARGET)
	$(CARGO) fuzz run -s none $(TARGET) fuzz/target/corpus/$(TARGET) fuzz/corpus/$(TARGET) -- \
		-max_total_time=$(SECONDS_FUZZ)

check: ## what every change has to pass
	$(CARGO) fmt --check
	$(MAKE) lint
	$(MAKE) test
	$(MAKE) docs
	$(MAKE) deny

deps: ## Debian packages that the tests use, installed when run as root
	@tests/deps.sh
