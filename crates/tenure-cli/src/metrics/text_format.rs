//! The text format 0.0.4 of Prometheus, which node_exporter's textfile collector reads. It
//! refuses a file of OpenMetrics whole, because of the type `info`.

/// Returns a document of OpenMetrics in the older format, in which a family has the name of
/// its samples, and `info` is a gauge. What else differs is a comment there: `# UNIT`,
/// `# EOF`.
pub fn in_text_format(document: &str) -> String {
    let words = |line| -> Option<(&str, &str, &str)> {
        let (word, rest) = str::strip_prefix(line, "# ")?.split_once(' ')?;
        let (name, rest) = rest.split_once(' ')?;
        Some((word, name, rest))
    };
    // HELP stands before TYPE.
    let renamed: Vec<(&str, &str)> = document
        .lines()
        .filter_map(|line| match words(line)? {
            ("TYPE", name, "counter") => Some((name, "_total")),
            ("TYPE", name, "info") => Some((name, "_info")),
            _ => None,
        })
        .collect();
    let line = |line| {
        let Some((word @ ("HELP" | "TYPE"), name, rest)) = words(line) else {
            return format!("{line}\n");
        };
        let known = renamed.iter().find(|(known, _)| *known == name);
        let suffix = known.map_or("", |(_, suffix)| suffix);
        let rest = match (word, rest) {
            ("TYPE", "info") => "gauge",
            _ => rest,
        };
        format!("# {word} {name}{suffix} {rest}\n")
    };
    document.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_names_of_their_samples() {
        let openmetrics = "\
# HELP a_build The version.
# TYPE a_build info
a_build_info{version=\"1\"} 1
# HELP a_read_bytes Bytes read, info.
# TYPE a_read_bytes counter
# UNIT a_read_bytes bytes
a_read_bytes_total{name=\"# TYPE x info\"} 7
# HELP a_used_bytes Bytes in use.
# TYPE a_used_bytes gauge
a_used_bytes 2
# EOF
";
        let older = "\
# HELP a_build_info The version.
# TYPE a_build_info gauge
a_build_info{version=\"1\"} 1
# HELP a_read_bytes_total Bytes read, info.
# TYPE a_read_bytes_total counter
# UNIT a_read_bytes bytes
a_read_bytes_total{name=\"# TYPE x info\"} 7
# HELP a_used_bytes Bytes in use.
# TYPE a_used_bytes gauge
a_used_bytes 2
# EOF
";
        assert_eq!(in_text_format(openmetrics), older);
    }
}
