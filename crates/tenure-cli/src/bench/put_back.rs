//! A setting of the machine that is put back, and a cgroup that is removed,
//! however the command ends.

use std::{
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};

/// A shell that waits for our end and then writes a number back into a file, or
/// removes a cgroup. It does so also when we are killed, by the OOM killer for
/// one.
pub struct PutBack {
    shell: Child,
    what: &'static str,
}

impl PutBack {
    /// Will write `number` into `file`, whose setting is called `what`, when this
    /// is dropped or the process has ended.
    pub fn at_the_end(file: &Path, number: u64, what: &'static str) -> Result<Self> {
        Self::start(r#"echo "$2" >"$1""#, file, &number.to_string(), what)
    }

    /// Will remove the folder of a cgroup, when its processes have ended.
    pub fn removed_at_the_end(group: &Path) -> Result<Self> {
        // A process that has just ended is counted a moment longer.
        const SCRIPT: &str =
            r#"for try in $(seq 200); do rmdir "$1" && exit; sleep 0.02; done; exit 1"#;
        Self::start(SCRIPT, group, "", "the cgroup")
    }

    fn start(script: &str, file: &Path, text: &str, what: &'static str) -> Result<Self> {
        let script = format!(r#"trap "" HUP INT TERM; cat >/dev/null; {script}"#);
        let shell = Command::new("sh")
            .args(["-c", &script, "sh"])
            .args([file.as_os_str(), text.as_ref()])
            // Its end is the end of what it reads, and we never write.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the terminal is for us.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting sh, which is to put {what} back"))?;
        Ok(Self { shell, what })
    }
}

impl Drop for PutBack {
    fn drop(&mut self) {
        // This closes what the shell reads from.
        let ended = self.shell.wait();
        if !ended.is_ok_and(|status| status.success()) {
            eprintln!("tenure: {} could not be put back", self.what);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_number_comes_back_when_this_is_dropped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let put_back = PutBack::at_the_end(file.path(), 3, "the number").unwrap();
        fs::write(file.path(), "10\n").unwrap();
        drop(put_back);
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "3\n");
    }

    #[test]
    fn a_folder_is_gone_when_it_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().join("group");
        fs::create_dir(&group).unwrap();
        drop(PutBack::removed_at_the_end(&group).unwrap());
        assert!(!group.exists());
    }

    #[test]
    fn the_number_comes_back_when_nobody_can_drop_this() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut put_back = PutBack::at_the_end(file.path(), 3, "the number").unwrap();
        fs::write(file.path(), "10\n").unwrap();
        // The kernel closes this when the process is killed.
        drop(put_back.shell.stdin.take());
        assert!(put_back.shell.wait().unwrap().success());
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "3\n");
    }
}
