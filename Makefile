# Thin wrappers over cargo.

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo

.PHONY: demo test check generate install uninstall bench clean

# Five experiments on this machine's memory, within a minute.
demo:
	$(CARGO) run --quiet --release --package tenure-cli -- bench --quick

bench: demo

# Every test there is; as root a second time as an unprivileged user.
test:
	$(CARGO) xtask test
	if [ "$$(id -u)" = 0 ]; then $(CARGO) xtask test --unprivileged; fi

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --quiet --workspace --no-deps --document-private-items
	$(CARGO) xtask layers
	$(CARGO) xtask generate --check

# Man pages and shell completions, from the command's own definition.
generate:
	$(CARGO) xtask generate

install:
	$(CARGO) build --quiet --release --package tenure-cli
	install -D -m 755 target/release/tenure $(DESTDIR)$(PREFIX)/bin/tenure
	for page in man/*.1; do \
		install -D -m 644 $$page $(DESTDIR)$(PREFIX)/share/man/man1/$$(basename $$page) || exit 1; \
	done
	install -D -m 644 completions/tenure.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tenure
	install -D -m 644 completions/_tenure $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tenure
	install -D -m 644 completions/tenure.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tenure.fish

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/tenure
	for page in man/*.1; do rm -f $(DESTDIR)$(PREFIX)/share/man/man1/$$(basename $$page); done
	rm -f $(DESTDIR)$(PREFIX)/share/bash-completion/completions/tenure
	rm -f $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_tenure
	rm -f $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/tenure.fish

clean:
	$(CARGO) clean
