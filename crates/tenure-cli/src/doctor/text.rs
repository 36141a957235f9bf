//! The report as text.

use comfy_table::{ColumnConstraint, ContentArrangement, Table, TableStyle, Width};

use super::{
    Report,
    check::{Check, Status},
};

/// The width of the narrowest usual terminal.
const WIDTH: u16 = 80;
const STATUS_WIDTH: u16 = 9;
const NAME_WIDTH: u16 = 22;

/// Returns the checks of each verb under its name, and the numbers of those not ok.
pub fn text(report: &Report) -> String {
    let mut text = format!(
        "tenure {} on Linux {} ({})",
        report.tenure_version, report.kernel, report.architecture
    );
    for (is, what) in [
        (report.virtual_machine, "virtual machine"),
        (report.container, "container"),
    ] {
        if is {
            text += &format!(", {what}");
        }
    }
    text += "\n";
    for of_verb in report.checks.chunk_by(|a, b| a.verb == b.verb) {
        text += &format!("\n{}\n{}\n", of_verb[0].verb, group(of_verb));
    }
    text + &format!("\n{}\n", summary(&report.checks))
}

fn group(checks: &[Check]) -> String {
    let mut table = Table::new();
    table
        .load_style(TableStyle::new())
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(WIDTH);
    for check in checks {
        let mut words = format!("{}; {}", check.found, check.effect);
        if let Some(remedy) = &check.remedy {
            words += &format!("\n→ {remedy}");
        }
        table.add_row([check.status.as_str(), check.name, &words]);
    }
    let rest = WIDTH - STATUS_WIDTH - NAME_WIDTH;
    let widths = [STATUS_WIDTH, NAME_WIDTH, rest];
    let fixed = |width| ColumnConstraint::Absolute(Width::Fixed(width));
    table.set_constraints(widths.map(fixed));
    table.trim_fmt()
}

fn summary(checks: &[Check]) -> String {
    let count = |status| checks.iter().filter(|check| check.status == status).count();
    match (count(Status::Missing), count(Status::Limited)) {
        (0, 0) => "Everything is there.".to_owned(),
        (missing, limited) => {
            format!(
                "Of {}, {missing} missing and {limited} limited.",
                checks.len()
            )
        }
    }
}
