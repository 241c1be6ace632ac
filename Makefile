# Everything one does with Splitway. Each target installs what it needs first (scripts/setup.sh).
SHELL := /bin/bash
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin

CARGO   ?= cargo
TARGET  := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
ROOT    ?= examples/site
# Creating a link needs root.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help serve demo deny test test-long test-loom test-aarch64 test-machine test-fuzz check bench bench-link bench-ceiling bench-instructions aarch64 deb man library install release clean

help: ## Shows this
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

serve: setup-serve release ## Serves ROOT (default: examples/site) at http://10.77.0.2/ until Ctrl-C
	@$(AS_ROOT) $(RELEASE)/splitway serve $(ROOT)

demo: setup-serve release ## Downloads examples/site in a namespace of its own, and tells who did what; needs no privileges
	@$(RELEASE)/splitway demo

test: setup-test ## Runs every test but fuzzing and the long ones
	$(CARGO) test --workspace --locked
	$(CARGO) run --quiet --locked -p splitway-tcp --example loopback
	$(CARGO) run --quiet --locked -p splitway-server --example minimal
	@$(MAKE) --no-print-directory test-loom
	@$(MAKE) --no-print-directory bench-instructions
	@[ -n "$$SPLITWAY_NO_AARCH64" ] || $(MAKE) --no-print-directory test-aarch64

test-long: test deny test-fuzz test-machine ## The same, and the long ones: fuzzing, an emulated Arm machine, large and lossy downloads
	ulimit -n 262144 2>/dev/null || true; PATH="$$PATH:$(abspath $(TARGET))/sslyze/bin:$(abspath $(TARGET))/redbot/bin" \
		$(CARGO) test --workspace --locked --lib --bins --tests -- --ignored

# What shared memory carries, under every interleaving that matters. A build of its own: loom replaces the atomics.
test-loom: setup-test
	RUSTFLAGS="--cfg loom" $(CARGO) test --release --locked -p splitway-shm -p splitway-socket-channel --lib --target-dir $(TARGET)/loom

test-aarch64: ## Builds splitway for the Arm cores of a DPU, and runs both stacks there under user emulation
	@scripts/aarch64.sh try

# What the emulated machine of the long tests is made of.
test-machine:
	@scripts/aarch64.sh machine

FUZZ_SECONDS ?= 30
test-fuzz: setup-long
	@set -e; for target in $$($(CARGO) +nightly fuzz list); do \
		$(CARGO) +nightly fuzz run --target-dir $(TARGET)/fuzz $$target -- -max_total_time=$(FUZZ_SECONDS); \
	done

deny: setup-deny ## Checks licences, sources and duplicates of dependencies with cargo-deny, and advisories where their database can be had
	$(CARGO) deny --all-features check bans licenses sources
	@if $(CARGO) deny fetch db; then $(CARGO) deny check advisories; else echo "the advisory database cannot be had: advisories are not checked"; fi

check: setup-test ## Formatting, lints and documentation, as in continuous integration
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

BENCH ?=
bench: setup-bench library ## Measures Splitway against nginx and lighttpd, and draws the paper's figures; BENCH="targets", BENCH="--quick"
	$(CARGO) build --release --locked -p splitway-cli -p splitway-bench
	@$(AS_ROOT) $(RELEASE)/splitway bench $(BENCH)

bench-instructions: setup-test ## Counts instructions per ACK, per SEND and per request; fails if they have grown by 5 %
	$(CARGO) bench --locked -p splitway-host -p splitway-nic -p splitway-server --bench ack_send --bench plain_send --bench request --bench request_http2

bench-ceiling: setup-test ## How much one host core controls, with BENCH="--quick" in a minute or two
	$(CARGO) build --release --locked -p splitway-bench
	@$(RELEASE)/splitway-bench ceiling $(BENCH)
	@$(RELEASE)/splitway-bench model

bench-link: setup-bench ## Goodput over emulated links, against the kernel's TCP, with BENCH="--quick" in some minutes; needs root
	$(CARGO) build --release --locked -p splitway-cli -p splitway-bench
	@$(AS_ROOT) $(RELEASE)/splitway-bench link $(BENCH)

aarch64: ## Builds splitway for the Arm cores of a DPU
	@scripts/aarch64.sh build --release

deb: setup-deb man library ## Makes a Debian package, in target/debian: program, library, manual pages, completions, systemd units
	@gzip --best --no-name --keep --force $(RELEASE)/package/man/*.[137]
	@$(CARGO) deb --no-build --strip --locked -p splitway-cli --output $(TARGET)/debian/

man: setup-serve release ## Writes manual pages, and completions for bash, zsh and fish, to target/release/package
	@$(RELEASE)/splitway generate man $(RELEASE)/package/man
	@$(RELEASE)/splitway generate completions $(RELEASE)/package/completions

PREFIX  ?= /usr/local
# Where the library says that it is installed; in a package, below /usr.
deb: PREFIX = /usr
library: setup-serve ## Links libsplitway.so and libsplitway-preload.so, headers and pages beside them, in target/release/package
	@$(CARGO) build --release --locked -p splitway-capi -p splitway-preload
	@scripts/library.sh stage $(RELEASE)/libsplitway.a $(RELEASE)/package $(PREFIX)

install: man library ## Installs program, libraries, manual pages and completions below PREFIX (default: /usr/local), within DESTDIR
	@$(if $(DESTDIR),,$(AS_ROOT)) scripts/install.sh $(RELEASE) $(DESTDIR)$(PREFIX)

release:
	@$(CARGO) build --release --locked -p splitway-cli

clean: ## Removes what was built
	$(CARGO) clean

setup-%:
	@scripts/setup.sh $*
