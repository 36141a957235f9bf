//! The environment of a program, as others set it: a shell, systemd, Kubernetes.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use crate::cli::Form;

/// Returns the variables in a form, a line (of a pod: two) for each.
///
/// # Errors
///
/// A message for a value that the form cannot have.
pub(super) fn text(variables: &[(&str, OsString)], form: Form) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    for (name, value) in variables {
        text.extend(line(name, value, form)?);
        text.push(b'\n');
    }
    Ok(text)
}

fn line(name: &str, value: &OsStr, form: Form) -> Result<Vec<u8>, String> {
    Ok(match form {
        Form::Shell => [b"export ", name.as_bytes(), b"=", &for_shell(value)].concat(),
        Form::Systemd => format!("Environment=\"{name}={}\"", for_systemd(value)).into_bytes(),
        Form::Pod => {
            let text = value.to_str();
            let text = text.ok_or_else(|| format!("{name} is not UTF-8, as YAML wants it"))?;
            // Kubernetes replaces $(NAME).
            let text = serde_json::Value::from(text.replace('$', "$$"));
            format!("- name: {name}\n  value: {text}").into_bytes()
        }
    })
}

/// Quotes a value for a POSIX shell, unless it has only characters without a meaning there.
fn for_shell(value: &OsStr) -> Vec<u8> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+:@".contains(byte);
    let bytes = value.as_bytes();
    if !bytes.is_empty() && bytes.iter().all(is_plain) {
        return bytes.to_vec();
    }
    let parts: Vec<_> = bytes.split(|byte| *byte == b'\'').collect();
    [b"'", parts.join(&br"'\''"[..]).as_slice(), b"'"].concat()
}

/// Escapes a value for double quotes in a unit, where "%" is a specifier.
fn for_systemd(value: &OsStr) -> String {
    let mut text = String::new();
    for chunk in value.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '"' | '\\' => text.extend(['\\', character]),
                '%' => text.push_str("%%"),
                '\n' => text.push_str("\\n"),
                '\t' => text.push_str("\\t"),
                _ if character.is_ascii_control() => escape(&mut text, character as u8),
                _ => text.push(character),
            }
        }
        for byte in chunk.invalid() {
            escape(&mut text, *byte);
        }
    }
    text
}

fn escape(text: &mut String, byte: u8) {
    let _ = write!(text, "\\x{byte:02x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(value: &[u8], form: Form) -> String {
        let variables = [("NAME", OsStr::from_bytes(value).to_owned())];
        String::from_utf8(text(&variables, form).unwrap()).unwrap()
    }

    #[test]
    fn plain_value_needs_no_quotes_in_a_shell() {
        let path = b"/usr/lib/x86_64-linux-gnu/libtenure_preload.so";
        let wanted = format!("export NAME={}\n", str::from_utf8(path).unwrap());
        assert_eq!(printed(path, Form::Shell), wanted);
        assert_eq!(printed(b"", Form::Shell), "export NAME=''\n");
        assert_eq!(
            printed(b"it's $1", Form::Shell),
            "export NAME='it'\\''s $1'\n"
        );
    }

    #[test]
    fn value_for_systemd_is_escaped() {
        for (value, wanted) in [
            (&b"/a/b.so"[..], "/a/b.so"),
            (b"100%", "100%%"),
            (b"a\"b\\c", "a\\\"b\\\\c"),
            (b"a\nb\x01", "a\\nb\\x01"),
            (b"\xff", "\\xff"),
            ("ü $x".as_bytes(), "ü $x"),
        ] {
            let wanted = format!("Environment=\"NAME={wanted}\"\n");
            assert_eq!(printed(value, Form::Systemd), wanted);
        }
    }

    #[test]
    fn value_for_a_pod_is_a_yaml_string() {
        let wanted = "- name: NAME\n  value: \"a$$(B)\\\"\"\n";
        assert_eq!(printed(b"a$(B)\"", Form::Pod), wanted);
        let variables = [("NAME", OsStr::from_bytes(b"\xff").to_owned())];
        assert!(text(&variables, Form::Pod).is_err());
    }
}
