//! A page of section 3: the doc comment, the prototype, and the example.

use anyhow::{Context as _, Result};
use roff::{Inline, Roff, bold, italic, roman};

use super::source::{Interface, Item};

/// Makes the page of `function`.
pub fn make(
    interface: &Interface,
    function: &Item,
    header: &str,
    example: &str,
    version: &str,
) -> Result<String> {
    let name = function.name.as_str();
    let prototype = prototype(header, name).context("no prototype in the header")?;
    let mut page = Roff::new();
    page.control("TH", [name, "3", " ", version, "tenure"]);
    page.control("SH", ["NAME"]);
    page.text([roman(format!("{name} - {}", summary(function)))]);
    page.control("SH", ["LIBRARY"]);
    page.text([
        roman("tenure ("),
        italic("libtenure"),
        roman(", "),
        italic("-ltenure"),
        roman(")"),
    ]);
    page.control("SH", ["SYNOPSIS"]);
    verbatim(
        &mut page,
        &format!("#include <tenure.h>\n\n{prototype}"),
        bold,
    );
    page.control("SH", ["DESCRIPTION"]);
    write(&mut page, &function.section(None));
    constants(&mut page, interface, function);
    for structure in structures(header, prototype) {
        page.control("PP", []);
        verbatim(&mut page, structure, roman);
    }
    for heading in ["Return value", "Errors", "Caveats", "Notes"] {
        let lines = function.section(Some(heading));
        if !lines.is_empty() {
            page.control("SH", [heading.to_uppercase().as_str()]);
            write(&mut page, &lines);
        }
    }
    page.control("SH", ["EXAMPLE"]);
    verbatim(&mut page, example.trim_end(), roman);
    page.control("SH", ["SEE ALSO"]);
    write(&mut page, &function.section(Some("See also")));
    Ok(page.to_roff())
}

/// Returns the first sentence up to a colon, if it has one.
fn summary(function: &Item) -> String {
    let text = function.section(None).join(" ").replace('`', "");
    let end = text.find([':', '.']).unwrap_or(text.len());
    let mut letters = text[..end].chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// Returns the declaration of the function, up to its semicolon.
fn prototype<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let is_it =
        |line: &str| !line.starts_with([' ', '#', '/']) && line.contains(&format!("{name}("));
    let line = header.lines().find(|line| is_it(line))?;
    let rest = &header[header.find(line)?..];
    Some(&rest[..=rest.find(';')?])
}

/// Returns the definitions of the structures that a declaration names; before each, those
/// of its fields.
fn structures<'a>(header: &'a str, declaration: &str) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for definition in declaration.split("struct ").skip(1).filter_map(|rest| {
        let opening = format!("struct {} {{", rest.split_whitespace().next()?);
        let rest = &header[header.find(&opening)?..];
        Some(&rest[..rest.find("\n};")? + 3])
    }) {
        let fields = &definition["struct ".len()..];
        for structure in structures(header, fields).into_iter().chain([definition]) {
            if !found.contains(&structure) {
                found.push(structure);
            }
        }
    }
    found
}

/// Writes the constants that the description names, each with its meaning.
fn constants(page: &mut Roff, interface: &Interface, function: &Item) {
    let text = function.section(None).join(" ");
    let named = |item: &&Item| text.contains(&format!("`{}`", item.name));
    for item in interface.constants.iter().filter(named) {
        page.control("TP", []);
        page.text([bold(item.name.as_str())]);
        page.text(inlines(&item.doc.join(" ")));
    }
}

/// Writes paragraphs, and lists with items of the form "* TAG: text".
fn write(page: &mut Roff, lines: &[&str]) {
    for block in blocks(lines) {
        if let Some(item) = block.strip_prefix("* ") {
            let (tag, text) = item.split_once(": ").unwrap_or((item, ""));
            page.control("TP", []);
            page.text(inlines(tag));
            page.text(inlines(text));
        } else {
            page.control("PP", []);
            page.text(inlines(&block));
        }
    }
}

/// Joins the lines of each paragraph and of each item.
fn blocks(lines: &[&str]) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in lines {
        if line.is_empty() {
            goes_on = false;
        } else if goes_on && !line.starts_with("* ") {
            if let Some(block) = blocks.last_mut() {
                block.push(' ');
                block.push_str(line.trim());
            }
        } else {
            blocks.push((*line).to_owned());
            goes_on = true;
        }
    }
    blocks
}

/// Makes text between backticks and the names of man pages bold.
fn inlines(text: &str) -> Vec<Inline> {
    let mut parts = Vec::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            parts.push(bold(part));
            continue;
        }
        for word in part.split_inclusive(' ') {
            match word.split_once('(') {
                Some((name, rest)) if rest.starts_with(|c: char| c.is_ascii_digit()) => {
                    parts.push(bold(name));
                    parts.push(roman(format!("({rest}")));
                }
                _ => parts.push(roman(word)),
            }
        }
    }
    parts
}

fn verbatim(page: &mut Roff, text: &str, font: fn(String) -> Inline) {
    page.control("nf", []);
    for line in text.lines() {
        page.text([font(line.to_owned())]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn make_function_with_sections_writes_them_all() {
        let mut interface = Interface::default();
        let read = interface.read(
            "/// First.\npub const F_ONE: c_uint = 1;\n/// Does `it`: at\n/// once.\n///\n/// `flags` is `F_ONE`.\n///\n\
             /// # Errors\n///\n/// * `-EINVAL`: It is\n///   wrong.\n/// * `-EIO`: Too.\n///\n/// # See also\n///\n/// mlock(2)\n\
             #[unsafe(no_mangle)]\npub extern \"C\" fn f(x: c_int) {}\n",
        );
        read.unwrap();
        let header = "struct t {\n    int b;\n};\n\nstruct s {\n    struct t a;\n};\n\n/** f(x) */\nint f(struct s *x,\n      int flags);\n";
        let page = make(
            &interface,
            &interface.functions[0],
            header,
            "int main;\n",
            "v",
        )
        .unwrap();
        let text = page.replace("\\fB", "").replace("\\fR", "");
        for wanted in [
            ".SH NAME\nf \\- does it\n",
            "int f(struct s *x,\n",
            "struct t {\n    int b;\n};\n.fi\n.PP\n.nf\nstruct s {\n    struct t a;\n};",
            ".TP\nF_ONE\nFirst.",
            ".TP\n\\-EINVAL\nIt is wrong.\n.TP\n\\-EIO\nToo.",
            ".SH EXAMPLE",
            "int main;",
            "mlock(2)",
        ] {
            assert!(text.contains(wanted), "{wanted:?} in {text}");
        }
    }
}
