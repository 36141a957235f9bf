//! How many files can be kept: each stays open.

use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::files::complaints::Complaints;

/// The most descriptors for what else the command opens: folders, files of /proc.
const MAX_RESERVE: u64 = 64;

/// The limit on open files, and what was said about it.
pub struct Descriptors {
    limit: u64,
    /// How many files were left out last time.
    left_out: usize,
}

impl Descriptors {
    /// Raises the limit as far as that is allowed.
    pub fn raise() -> Self {
        let before = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: before.maximum,
            maximum: before.maximum,
        };
        // Where it is refused, the limit that there is holds.
        let limit = match setrlimit(Resource::Nofile, raised) {
            Ok(()) => raised.current,
            Err(_) => before.current,
        };
        Self {
            limit: limit.unwrap_or(u64::MAX),
            left_out: 0,
        }
    }

    /// The number of files that can be kept.
    pub fn max_files(&self) -> usize {
        let reserve = MAX_RESERVE.min(self.limit / 4);
        usize::try_from(self.limit - reserve).unwrap_or(usize::MAX)
    }

    /// Says that these files are left out, unless it is as many as last time.
    pub fn tell(&mut self, left_out: &[PathBuf], complaints: &Complaints) {
        if let Some(first) = left_out.first()
            && left_out.len() != self.left_out
        {
            let count = left_out.len();
            complaints.line(&format!(
                "tenure: {count} files are left out, from {} on: with RLIMIT_NOFILE at {}, \
                 {} files can be kept; raise it (ulimit -Hn, or LimitNOFILE= in a systemd unit)",
                first.display(),
                self.limit,
                self.max_files(),
            ));
        }
        self.left_out = left_out.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_reserved() {
        for (limit, max_files) in [(3, 3), (64, 48), (1024, 960), (524_288, 524_224)] {
            let left_out = 0;
            let descriptors = Descriptors { limit, left_out };
            assert_eq!(descriptors.max_files(), max_files, "{limit}");
        }
    }
}
