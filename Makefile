# Entry points. Each target does its own set-up and may be repeated; the work is in scripts/.

target := $(or $(CARGO_TARGET_DIR),target)
cargo := scripts/cargo.sh

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-mpi bench bench-mpi install uninstall deb fuzz soak lint fmt docs book clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## install missing tools on a Debian or Ubuntu machine, Rust included
	scripts/setup.sh

build: setup ## build weft, its examples and the limit programs
	$(MAKE) -C bench/limits
	$(cargo) build --workspace --bins --lib --examples --release --locked

demo: setup ## words counted over Active Messages, a put, a job in C, few frames, and what messages cost here (FILES="a b" to count in)
	$(MAKE) -C bench/limits
	$(cargo) build -p weft-cli -p weftd -p weft-capi --release --locked
	$(target)/release/weft demo --report $(target)/weft-report.html $(FILES)

test: ## run all checks: lints, builds and tests, as root and as an ordinary user
	scripts/test.sh

test-mpi: ## run MPIs, programs that use them, and libfabric's tools over weft (STEPS="openmpi killed" for some)
	scripts/test-mpi.sh $(STEPS)

bench: ## measure weft beside the machine's limits, the kernel's sockets and UCX (ARGS="--quick --json FILE")
	scripts/setup.sh --for bench
	$(MAKE) build
	$(target)/release/weft bench local $(ARGS)

bench-mpi: ## measure MPI over weft beside the MPIs' own transports and libfabric's (ARGS="--quick --json FILE")
	scripts/get-mpi.sh
	$(MAKE) -C bench/limits
	$(cargo) build -p weft-cli --release --locked
	$(target)/release/weft bench mpi $(ARGS)

install: ## install what was built: weft, weftd, manuals, completions, provider, docs (PREFIX=/usr/local DESTDIR=)
	PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh install

uninstall: ## remove what was installed (the same PREFIX and DESTDIR)
	PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' scripts/install.sh uninstall

deb: build ## build a Debian package below target/deb
	scripts/deb.sh

fuzz: ## feed every decoder mutated input, five minutes each (SECONDS=n, TARGETS="packets channel")
	scripts/setup.sh --for test
	scripts/fuzz.sh $(or $(SECONDS),300) $(TARGETS)

soak: build ## run the long tests, which are marked `ignore`, the thread sanitiser, the book, and the package in a fresh system
	$(cargo) test --workspace --profile tests --locked -- --ignored
	$(cargo) test -p weft-sim --features rare --profile tests --locked --test rows -- --ignored s16
	scripts/races.sh
	scripts/book.sh
	[ "$$(id -u)" -ne 0 ] || scripts/test-deb.sh

lint: ## check formatting, lints and documentation only
	scripts/setup.sh --for test
	scripts/test.sh fmt clippy doc

fmt: ## format the code
	$(cargo) fmt --all
	$(cargo) fmt --manifest-path fuzz/Cargo.toml
	$(cargo) fmt --manifest-path examples/tokio/Cargo.toml

docs: setup ## build the reference of all crates, below target/doc
	$(cargo) doc --workspace --no-deps --locked

book: ## build the documents as a book, below target/book
	scripts/book.sh

clean: ## remove all that was built
	rm -rf $(target)
	$(MAKE) -C bench/limits clean
	$(MAKE) -C bench/am clean
