//! The doc comments of functions and constants.

use anyhow::Result;

use crate::figures;

/// A function or constant and its doc comment.
#[derive(Debug, PartialEq)]
pub struct Item {
    pub name: String,
    /// The lines, without slashes, with figures in place of their names.
    pub doc: Vec<String>,
}

/// The functions and constants of the C interface.
#[derive(Debug, Default)]
pub struct Interface {
    pub functions: Vec<Item>,
    pub constants: Vec<Item>,
}

impl Interface {
    /// Adds the declarations of a source file.
    pub fn read(&mut self, text: &str) -> Result<()> {
        let mut doc = Vec::new();
        let mut exported = false;
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("///") {
                doc.push(figures::fill(comment.strip_prefix(' ').unwrap_or(comment))?);
            } else if line.starts_with("#[") {
                exported |= line == "#[unsafe(no_mangle)]";
            } else {
                let doc = std::mem::take(&mut doc);
                let was_exported = std::mem::take(&mut exported);
                if let Some(rest) = line.strip_prefix("pub const ") {
                    let name = leading_name(rest);
                    self.constants.push(Item { name, doc });
                } else if was_exported && let Some((_, rest)) = line.split_once("fn ") {
                    let name = leading_name(rest);
                    self.functions.push(Item { name, doc });
                }
            }
        }
        Ok(())
    }
}

impl Item {
    /// Returns the lines before the first heading, or those under the given one.
    pub fn section(&self, heading: Option<&str>) -> Vec<&str> {
        let mut inside = heading.is_none();
        let mut lines = Vec::new();
        for line in &self.doc {
            if let Some(other) = line.strip_prefix("# ") {
                inside = heading == Some(other);
            } else if inside {
                lines.push(line.as_str());
            }
        }
        lines
    }
}

fn leading_name(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    text[..end.unwrap_or(text.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_source_finds_exported_items_with_their_sections() {
        let mut interface = Interface::default();
        let read = interface.read(
            "/// A flag.\npub const A: c_uint = 1;\nconst B: u8 = 2;\n\n/// Does it.\n///\n\
             /// # Errors\n///\n/// * `-EINVAL`: no.\n#[unsafe(no_mangle)]\n\
             pub unsafe extern \"C\" fn does_it(\n    x: c_int,\n) {}\n\n/// Ours.\nfn other() {}\n",
        );
        read.unwrap();
        let names = |items: &[Item]| {
            items
                .iter()
                .map(|item| item.name.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&interface.functions), ["does_it"]);
        assert_eq!(names(&interface.constants), ["A"]);
        let function = &interface.functions[0];
        assert_eq!(function.section(None), ["Does it.", ""]);
        assert_eq!(function.section(Some("Errors")), ["", "* `-EINVAL`: no."]);
        assert!(function.section(Some("Notes")).is_empty());
    }
}
