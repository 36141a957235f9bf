# Thin wrappers over cargo.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
# Where cargo builds.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# Links and installs the C library, of what cargo has built.
C_LIBRARY = $(MAKE) --directory crates/tenure-c PREFIX=$(PREFIX) DESTDIR=$(DESTDIR) \
	ARCHIVE=$(TARGET)/release/libtenure_c.a

.PHONY: demo test test-kernels check generate install uninstall bench clean

# Six experiments on this machine's memory, within a minute; the last line is the path
# of a page that shows them.
demo:
	$(CARGO) build --quiet --release --package tenure-cli --package tenure-preload
	$(TARGET)/release/tenure bench --quick --record $(TARGET)/demo.json
	@$(TARGET)/release/tenure report $(TARGET)/demo.json --output $(TARGET)/demo.html

bench: demo

# Every test there is; as root a second time as an unprivileged user.
test:
	$(CARGO) xtask test
	if [ "$$(id -u)" = 0 ]; then $(CARGO) xtask test --unprivileged; fi

# The library's tests on Debian's kernels, emulated: half an hour; docs/KERNELS.md tells
# what came of it.
test-kernels:
	tests/kernels/run

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --quiet --workspace --no-deps --document-private-items
	$(CARGO) xtask layers
	$(CARGO) xtask generate --check
	$(CARGO) xtask dependencies --check

# Man pages and shell completions, from the command's own definition; the C header
# and its pages, from the source of the C interface.
generate:
	$(CARGO) xtask generate

install:
	$(CARGO) build --quiet --release --package tenure-cli --package tenure-c --package tenure-preload
	$(C_LIBRARY) install
	install -D -m 755 $(TARGET)/release/tenure $(DESTDIR)$(PREFIX)/bin/tenure
	install -D -m 755 $(TARGET)/release/libtenure_preload.so $(DESTDIR)$(PREFIX)/lib/libtenure_preload.so
	for page in man/*.1; do \
		install -D -m 644 $$page $(DESTDIR)$(PREFIX)/share/man/man1/$$(basename $$page) || exit 1; \
	done
	install -D -m 644 completions/tenure.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tenure
	install -D -m 644 completions/_tenure $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tenure
	install -D -m 644 completions/tenure.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tenure.fish

uninstall:
	$(C_LIBRARY) uninstall
	rm -f $(DESTDIR)$(PREFIX)/bin/tenure $(DESTDIR)$(PREFIX)/lib/libtenure_preload.so
	for page in man/*.1; do rm -f $(DESTDIR)$(PREFIX)/share/man/man1/$$(basename $$page); done
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tenure
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tenure
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tenure.fish

clean:
	$(CARGO) clean
