//! tenure.h, by cbindgen.

use std::path::Path;

use anyhow::{Context as _, Result};
use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};

const OPENING: &str = "\
/* tenure.h - control over the life of memory on stock Linux kernels.
 *
 * Made from the source by `cargo xtask generate`; do not edit.
 *
 * A function answers 0 or a positive result, and -errno when it fails; errno itself
 * is not touched. Every function may be called from several threads at once, none
 * from a signal handler. A thread is not cancelled inside of one. tenure(7) tells the
 * ideas, and each function has a page of its own in section 3.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */";

/// Headings that say in Rust what the others have said already, or that only man
/// pages have.
const LEFT_OUT: [&str; 2] = ["See also", "Safety"];

/// Makes the header from the source file that names all others.
pub fn make(source: &Path) -> Result<String> {
    let config = Config {
        language: Language::C,
        style: Style::Tag,
        cpp_compat: true,
        header: Some(OPENING.to_owned()),
        include_guard: Some("TENURE_H".to_owned()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h", "sys/types.h"]
            .map(str::to_owned)
            .into(),
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::Doxy,
        line_length: 88,
        tab_width: 4,
        ..Config::default()
    };
    let builder = Builder::new().with_config(config).with_src(source);
    let mut bytes = Vec::new();
    builder.generate().context("cbindgen")?.write(&mut bytes);
    let text = String::from_utf8(bytes).context("the header")?;
    Ok(plain(&text))
}

/// Makes the comments what C programmers read: no markdown, and no section twice.
fn plain(header: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut left_out = false;
    for line in header.lines() {
        let Some((indent, comment)) = line.split_once('*').filter(|(it, _)| it.trim().is_empty())
        else {
            lines.push(line.trim_end().to_owned());
            continue;
        };
        if comment.starts_with('/') {
            left_out = false;
            // No empty line before the end.
            if lines.last().is_some_and(|last| last.trim() == "*") {
                lines.pop();
            }
            lines.push(line.to_owned());
        } else if let Some(heading) = comment.trim_start().strip_prefix("# ") {
            left_out = LEFT_OUT.contains(&heading);
            if !left_out {
                lines.push(format!("{indent}* {heading}:"));
            }
        } else if !left_out {
            lines.push(
                format!("{indent}*{}", comment.replace('`', ""))
                    .trim_end()
                    .to_owned(),
            );
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_plain() {
        let made = "/**\n * Does `it`.\n *\n * # Errors\n *\n * * `-EINVAL`: no.\n *\n * # See also\n *\n\
                    \x20* x(3)\n *\n * # Safety\n *\n * None.\n */\nint f(int *x);\n";
        let plain_text =
            "/**\n * Does it.\n *\n * Errors:\n *\n * * -EINVAL: no.\n */\nint f(int *x);\n";
        assert_eq!(plain(made), plain_text);
    }
}
