//! The figures of `tenure stat` as OpenMetrics.

mod families;
mod file;
mod labels;
mod text_format;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt,
};

use anyhow::Result;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::{Registry, Unit},
};
use tenure::pressure::Snapshot;

use self::families::{GROUP, LEVEL, OPERATION_BYTES, OPERATION_CALLS, PROCESS, Row, level};
use crate::stat::{GroupReport, ProcessReport, Report};
use tenure_bench::text::printable;

use self::labels::distinct;

pub use self::{file::replace, text_format::in_text_format};

/// HTTP's name of the text of [`document`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Returns the figures as OpenMetrics text, which ends with `# EOF`.
pub fn document(reports: Vec<Report>) -> Result<String> {
    let mut registry = Registry::with_prefix("tenure");
    registry.register_collector(Box::new(Figures::of(reports)));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

/// All figures of a document.
#[derive(Debug)]
struct Figures {
    machine: Option<Snapshot>,
    groups: Vec<GroupReport>,
    processes: Vec<ProcessReport>,
    /// Whether those that were named, by kind and name, could be read.
    targets: BTreeMap<(&'static str, OsString), bool>,
    /// How many processes may not be read.
    unreadable: usize,
}

impl Figures {
    /// Each process and cgroup comes once, because two samples with the same labels are an
    /// error.
    fn of(reports: Vec<Report>) -> Self {
        let (mut groups, mut processes) = (Vec::new(), Vec::new());
        let (mut paths, mut pids) = (BTreeSet::new(), BTreeSet::new());
        let (mut targets, mut unreadable) = (BTreeMap::new(), 0);
        for report in reports {
            let named = report.targets.into_iter();
            targets.extend(named.map(|it| ((it.kind, it.name), it.is_up)));
            unreadable += report.unreadable;
            let group = report.cgroup.as_ref();
            unreadable += group.map_or(0, |group| group.unreadable_processes);
            let new = |group: &GroupReport| paths.insert(group.path.clone());
            groups.extend(report.cgroup.filter(new));
            let new = |process: &ProcessReport| pids.insert(process.pid);
            processes.extend(report.processes.into_iter().filter(new));
        }
        Self {
            machine: Snapshot::now().ok(),
            groups,
            processes,
            targets,
            unreadable,
        }
    }

    /// Returns how many readings of each source have failed.
    fn errors(&self) -> [(&'static str, usize); 4] {
        let of = |is_error: fn(&ProcessReport) -> bool| {
            let failed = self.processes.iter().filter(|&process| is_error(process));
            failed.count()
        };
        [
            ("process", self.unreadable),
            ("counters", of(|process| process.tenure.is_unreadable())),
            ("preload", of(|process| !process.preload.is_known())),
            ("machine", usize::from(self.machine.is_none())),
        ]
    }
}

/// The labels that name a process or cgroup.
type Labels = Vec<(&'static str, String)>;

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let build =
            encoder.encode_descriptor("build", "The version of tenure.", None, MetricType::Info);
        build?.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        self.encode_signs(&mut encoder)?;
        if let Some(machine) = &self.machine {
            encode_machine(&mut encoder, machine)?;
        }
        let group = |group: &GroupReport| vec![("cgroup", distinct(group.path.as_os_str()))];
        encode_rows(&mut encoder, "cgroup", GROUP, &self.groups, group)?;
        let process = |process: &ProcessReport| {
            let name = printable(&process.name);
            vec![("pid", process.pid.to_string()), ("name", name)]
        };
        for rows in [PROCESS, OPERATION_CALLS, OPERATION_BYTES] {
            encode_rows(&mut encoder, "process", rows, &self.processes, process)?;
        }
        Ok(())
    }
}

impl Figures {
    /// Encodes what could be read: a sample that is absent says no more than that.
    fn encode_signs(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Readings that failed this time, by source: figures are missing.";
        let mut metric =
            encoder.encode_descriptor("scrape_errors", help, None, MetricType::Gauge)?;
        for (source, count) in self.errors() {
            let labels = [("source", source)];
            metric
                .encode_family(&labels)?
                .encode_gauge(&(count as u64))?;
        }
        if self.targets.is_empty() {
            return Ok(());
        }
        let help = "Whether a process or cgroup that was named is there and could be read: 1 or 0.";
        let mut metric = encoder.encode_descriptor("target_up", help, None, MetricType::Gauge)?;
        for ((kind, name), is_up) in &self.targets {
            let labels = [("kind", (*kind).to_owned()), ("target", distinct(name))];
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_gauge(&u64::from(*is_up))?;
        }
        Ok(())
    }
}

/// Encodes how short memory is for the process that reads the figures.
fn encode_machine(
    encoder: &mut DescriptorEncoder<'_>,
    machine: &Snapshot,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor("pressure_level", LEVEL, None, MetricType::Gauge)?;
    metric.encode_gauge(&level(machine.level))?;
    let shares = [("some", machine.some_stalled), ("all", machine.all_stalled)];
    let known = shares.map(|(tasks, share)| share.map(|share| (tasks, share)));
    if known.iter().all(Option::is_none) {
        return Ok(());
    }
    let help = "The part of the last ten seconds in which some or all tasks waited for memory.";
    let unit = Unit::Other("ratio".to_owned());
    let mut metric = encoder.encode_descriptor("stalled", help, Some(&unit), MetricType::Gauge)?;
    for (tasks, share) in known.into_iter().flatten() {
        let labels = [("tasks", tasks)];
        metric.encode_family(&labels)?.encode_gauge(&share)?;
    }
    Ok(())
}

/// Encodes the families of the rows that have a sample.
fn encode_rows<T>(
    encoder: &mut DescriptorEncoder<'_>,
    subject: &str,
    rows: &[Row<T>],
    all: &[T],
    labels_of: impl Fn(&T) -> Labels,
) -> Result<(), fmt::Error> {
    for family in rows.chunk_by(|row, next| row.name == next.name) {
        let samples = all.iter().flat_map(|one| {
            let known = family
                .iter()
                .filter_map(|row| Some((row, (row.value)(one)?)));
            known.map(|(row, value)| {
                let label = row.label.map(|(label, value)| (label, value.to_owned()));
                let labels: Labels = labels_of(one).into_iter().chain(label).collect();
                (labels, value)
            })
        });
        let samples: Vec<_> = samples.collect();
        let Some(row) = family.first().filter(|_| !samples.is_empty()) else {
            continue;
        };
        let kind = match row.is_counter {
            true => MetricType::Counter,
            false => MetricType::Gauge,
        };
        let name = format!("{subject}_{}", row.name);
        let unit = row.is_in_bytes.then_some(&Unit::Bytes);
        let mut metric = encoder.encode_descriptor(&name, row.help, unit, kind)?;
        for (labels, value) in samples {
            let mut metric = metric.encode_family(&labels)?;
            match row.is_counter {
                true => metric.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
                false => metric.encode_gauge(&value)?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
