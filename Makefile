# Thin wrappers over cargo.

PREFIX ?= /usr/local
# Where libraries go.
LIBDIR ?= $(PREFIX)/lib
DESTDIR ?=
CARGO ?= cargo
ifneq ($(words [$(PREFIX)] [$(DESTDIR)]),2)
$(error PREFIX and DESTDIR cannot have spaces in them)
endif
# Other makefiles, in other folders, use it as well.
override DESTDIR := $(and $(DESTDIR),$(abspath $(DESTDIR)))
# Where cargo builds.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# In CI a test that fails once, and passes each of five repetitions, does not fail the run.
TEST = $(CARGO) xtask test $(if $(CI),--repeat-failed)
# Links and installs the C library, of what cargo has built.
C_LIBRARY = $(MAKE) --no-print-directory --directory crates/tenure-c PREFIX=$(PREFIX) \
	LIBDIR=$(LIBDIR) DESTDIR=$(DESTDIR) \
	ARCHIVE=$(TARGET)/release/libtenure_c.a

.PHONY: demo bench check format lint doc fresh test test-thorough test-rest test-older test-unprivileged \
	test-kernels test-deb crates fuzz miri tsan deny generate install uninstall \
	deb wheel clean

# Six experiments on this machine's memory, within a minute; the last line is the path
# of an HTML report that shows them.
demo:
	$(CARGO) build --quiet --release --package tenure-cli --package tenure-preload
	$(TARGET)/release/tenure bench --quick --record $(TARGET)/demo.json
	@$(TARGET)/release/tenure report $(TARGET)/demo.json --output $(TARGET)/demo.html

bench: demo

# What has to be true of the source, one by one.
check: format lint doc fresh

format:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --quiet --workspace --all-targets -- --deny warnings

doc:
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --quiet --workspace --no-deps --document-private-items

# The layers hold, no retired term is used, and generated files are fresh.
fresh:
	$(CARGO) xtask layers
	$(CARGO) xtask terms
	$(CARGO) xtask generate --check
	$(CARGO) xtask dependencies --check

# Everything that protects a contract, in one pass of a few minutes.
test:
	$(TEST)

# What is slow and rarely the first to fail.
test-thorough: test-rest test-older test-unprivileged

# Every errno of every call, missing features, sanitizers, valgrind, real programs, soaks,
# corpora, models.
test-rest:
	$(TEST) --thorough

# The library's tests without the features that older kernels lack. Those that are left out
# fill the list of mappings, which is then read as text 65,000 times: minutes for the same
# counts as with the features.
test-older:
	$(TEST) --package tenure --skip fault:: --skip marks_past_the_share \
		--skip unmarks_of_parts_past_the_share --skip offer_thread_leaves_what_exceeds_the_share \
		--without procmap_query,pagemap_scan,mremap_dontunmap,madv_dontneed_locked,smaps_lock_mode
	$(TEST) --package tenure --without madv_populate tenure::populate tenure::lazy_free

# `make test` once more without privileges, if the caller is root.
test-unprivileged:
	if [ "$$(id -u)" = 0 ]; then $(TEST) --unprivileged --skip fault::; fi

# The library's tests on Debian's kernels, emulated: an hour or two; docs/KERNELS.md tells
# what came of it.
test-kernels:
	tests/kernels/run

# Each fuzzing target for a minute, with a nightly toolchain and cargo-fuzz.
fuzz:
	for target in registries parsers c_interface; do \
		$(CARGO) +nightly fuzz run --sanitizer none $$target -- -max_total_time=60 \
			-timeout=30 -rss_limit_mb=8000 || exit 1; \
	done

# The library's unit tests that ask nothing of the kernel, in Miri, with a nightly
# toolchain that has it. (It knows neither mremap and userfaultfd nor memory without
# access, and takes minutes for ready::locked_file::queue.)
MIRI_TESTS := background::freeing::worker_scaling background::chunk_sizer ground::bytes ground::range \
	observation::pressure::judge observation::pressure::pause ready::locked_file::chunks \
	verbs::populate::workers verbs::populate::options \
	verbs::volatile::registry::marks verbs::volatile::registry::objects \
	verbs::volatile::registry::offer_backoff verbs::volatile::registry::local_counts \
	verbs::volatile::registry::word verbs::volatile::engine::free_extents
miri:
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=16 \
		$(CARGO) +nightly miri test --package tenure --lib -- $(MIRI_TESTS)

# The tests of the library and of the heap with ThreadSanitizer: half an hour, of which ten
# minutes build. Needs a nightly toolchain of rustup's with rust-src (rustup +nightly
# component add rust-src), or TENURE_RUST_SRC=FOLDER, the folder `library` of Rust's source
# of the same version; without either it is a skip with its reason.
tsan:
	$(CARGO) xtask test --tsan --all --package tenure --package tenure-heap

# Licences, origins and duplicates of what tenure is built with, with cargo-deny; and
# known advisories, where there is a network to have them from.
deny:
	$(CARGO) deny --offline --workspace check licenses bans sources
	$(CARGO) deny --workspace check advisories

# The crates that are published, each built from its package. The folder is new for each run:
# cargo keeps what it has unpacked and built of a version, also after the source has changed.
PUBLISHED := tenure tenure-heap tenure-options tenure-bench tenure-cli tenure-sqlite
crates:
	folder=$$(mktemp -d) && $(CARGO) package --quiet --allow-dirty --target-dir "$$folder" \
		$(addprefix --package ,$(PUBLISHED)); status=$$?; rm -rf "$$folder"; exit $$status

# Man pages and shell completions, from the command's own definition; the C header
# and its pages, from the source of the C interface.
generate:
	$(CARGO) xtask generate

# Where the parts of the command go, below PREFIX.
BASH_COMPLETIONS := share/bash-completion/completions
ZSH_COMPLETIONS := share/zsh/site-functions
FISH_COMPLETIONS := share/fish/vendor_completions.d
UNIT_FOLDER := lib/systemd/system
# Every unit beside the packages' files is installed.
UNITS := $(wildcard packaging/*.service)
prefix := $(DESTDIR)$(PREFIX)

# The Python package under target/wheels, with the command and the preloaded library in it.
# Needs maturin, a C compiler and make. (Its test has WHEEL_PROFILE=dev and a folder of its own.)
BUNDLED := crates/tenure-python/python/tenure/_bin
WHEELS ?= $(TARGET)/wheels
WHEEL_PROFILE ?= release
BUILT := $(TARGET)/$(if $(filter dev,$(WHEEL_PROFILE)),debug,$(WHEEL_PROFILE))
wheel:
	$(CARGO) build --profile $(WHEEL_PROFILE) --package tenure-cli --package tenure-preload \
		--package tenure-sqlite --features tenure-sqlite/private-heap
	install -D -s -m 755 -t $(BUNDLED) $(BUILT)/tenure $(BUILT)/libtenure_preload.so \
		$(BUILT)/libtenure_sqlite.so
	maturin build --profile $(WHEEL_PROFILE) --manifest-path crates/tenure-python/Cargo.toml \
		--out $(WHEELS); status=$$?; rm -r $(BUNDLED); exit $$status

install:
	$(CARGO) build --release --package tenure-cli --package tenure-c --package tenure-preload \
		--package tenure-sqlite --features tenure-sqlite/private-heap
	$(C_LIBRARY) install
	packaging/folders make '$(DESTDIR)' '$(PREFIX)' $(LIBDIR) $(addprefix $(PREFIX)/,bin \
		share/man/man1 $(BASH_COMPLETIONS) $(ZSH_COMPLETIONS) $(FISH_COMPLETIONS) \
		$(if $(UNITS),$(UNIT_FOLDER)))
	install -m 755 $(TARGET)/release/tenure $(prefix)/bin/tenure
	install -m 755 $(TARGET)/release/libtenure_preload.so $(DESTDIR)$(LIBDIR)/libtenure_preload.so
	install -m 755 $(TARGET)/release/libtenure_sqlite.so $(DESTDIR)$(LIBDIR)/libtenure_sqlite.so
	install -m 644 crates/tenure-sqlite/include/tenure_sqlite.h $(prefix)/include
	install -m 644 crates/tenure-sqlite/man/*.3 $(prefix)/share/man/man3
	install -m 644 man/*.1 $(prefix)/share/man/man1
	install -m 644 completions/tenure.bash $(prefix)/$(BASH_COMPLETIONS)/tenure
	install -m 644 completions/_tenure $(prefix)/$(ZSH_COMPLETIONS)/_tenure
	install -m 644 completions/tenure.fish $(prefix)/$(FISH_COMPLETIONS)/tenure.fish
	$(if $(UNITS),install -m 644 $(UNITS) $(prefix)/$(UNIT_FOLDER))
	@echo 'tenure is installed below $(prefix)'

uninstall:
	rm -f $(prefix)/bin/tenure $(DESTDIR)$(LIBDIR)/libtenure_preload.so \
		$(DESTDIR)$(LIBDIR)/libtenure_sqlite.so $(prefix)/include/tenure_sqlite.h \
		$(prefix)/share/man/man3/tenure_sqlite3_install.3
	rm -f $(patsubst man/%,$(prefix)/share/man/man1/%,$(wildcard man/*.1))
	rm -f $(prefix)/$(BASH_COMPLETIONS)/tenure $(prefix)/$(ZSH_COMPLETIONS)/_tenure
	rm -f $(prefix)/$(FISH_COMPLETIONS)/tenure.fish
	$(if $(UNITS),rm -f $(patsubst packaging/%,$(prefix)/$(UNIT_FOLDER)/%,$(UNITS)))
	$(C_LIBRARY) uninstall
	@echo 'tenure is gone from below $(prefix)'

# Debian packages of what `make install` installs, below target/deb. Needs dpkg-dev.
DEB := $(TARGET)/deb
REVISION ?= 1
deb:
	rm -rf $(DEB)/staging
	$(MAKE) --no-print-directory install DESTDIR=$(DEB)/staging PREFIX=/usr \
		LIBDIR=/usr/lib/$$(dpkg-architecture -q DEB_HOST_MULTIARCH)
	$(CARGO) xtask deb --staging $(DEB)/staging --output $(DEB) --revision $(REVISION)

# Debian packages installed, used, upgraded and removed in a fresh root, as root; needs
# mmdebstrap and lintian, and Debian's archive.
test-deb: deb
	packaging/test-deb $(DEB)

clean:
	$(CARGO) clean
