//! Runs all tests, if asked to without privileges or as on older kernels, and adds up
//! their results.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::{summary::Summary, watched};

/// The user and group that own nothing (nobody).
const NOBODY: u32 = 65534;

/// Tests that are not run once more without privileges, by what their names begin
/// with: the same programs are, but without a tool or another allocator beneath; what a
/// refused call leads to is the same for every user; and models ask nothing of the
/// system. (To leave out their package would have cargo build the others anew.)
const ONCE: [&str; 7] = [
    "fault::",
    "loom::",
    "asan::",
    "valgrind::",
    "libjemalloc",
    "libmimalloc",
    "libtcmalloc",
];

/// What is run once more as on older kernels: the features that tenure then does
/// without, and the tests that concern them.
const OLDER_KERNELS: [(&str, &[&str]); 2] = [
    (
        "procmap_query,pagemap_scan,mremap_dontunmap,madv_dontneed_locked,smaps_lock_mode",
        &[
            "--package",
            "tenure",
            "--tests",
            "--",
            // It does without features by itself.
            "--skip",
            "fault::",
            "--skip",
            "missing::",
        ],
    ),
    (
        "madv_populate",
        &[
            "--package",
            "tenure",
            "--test",
            "populate",
            "--test",
            "lazy_free",
        ],
    ),
];

/// Runs `cargo test` for the workspace below `root` with further `arguments`.
/// Returns whether all is well.
pub fn run(root: &Path, unprivileged: bool, arguments: &[String]) -> Result<bool> {
    let mut variables = Vec::new();
    let mut runner = watch()?;
    // Kept until the tests have ended.
    let _home = if unprivileged {
        drop_privileges(&mut runner, &mut variables, root)?
    } else {
        None
    };
    let runner = runner_option(&host_triple()?, &runner)?;
    let mut whole = vec!["--workspace"];
    whole.extend(arguments.iter().map(String::as_str));
    if arguments.is_empty() && unprivileged {
        whole.push("--");
        whole.extend(ONCE.iter().flat_map(|&name| ["--skip", name]));
    }
    let mut summary = Summary::default();
    let all_well = run_cargo(root, &runner, &variables, &whole, &mut summary)?;
    print!("{}", summary.text());
    Ok(all_well)
}

/// Runs the core library's tests as on older kernels. Returns whether all is well.
pub fn run_older(root: &Path) -> Result<bool> {
    let runner = runner_option(&host_triple()?, &watch()?)?;
    let mut summary = Summary::default();
    let mut all_well = true;
    for (without, which) in OLDER_KERNELS {
        println!("\n== as on a kernel without {without}");
        let variables = [("TENURE_WITHOUT".into(), without.into())];
        all_well &= run_cargo(root, &runner, &variables, which, &mut summary)?;
    }
    print!("{}", summary.text());
    Ok(all_well)
}

/// Each test program is run by this one, which sees that it ends.
fn watch() -> Result<Vec<OsString>> {
    let this = env::current_exe().context("looking for this program")?;
    Ok(vec![this.into(), "watch".into(), "--".into()])
}

type Variable = (OsString, OsString);

/// How long what cargo has left behind may still write.
const GRACE: Duration = Duration::from_secs(10);

fn run_cargo(
    root: &Path,
    runner: &str,
    variables: &[Variable],
    which: &[&str],
    summary: &mut Summary,
) -> Result<bool> {
    // Standard error stays what it is; standard output is echoed and read.
    let mut child = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root)
        .args(["test", "--no-fail-fast", "--config", runner])
        .args(which)
        .envs(variables.iter().cloned())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let output = child.stdout.take().context("no output from cargo")?;
    let pipe = watched::name_of(&output)?;
    let (echoed, all) = mpsc::channel();
    thread::spawn(move || {
        let mut read = Summary::default();
        let done = echo(BufReader::new(output), &mut io::stdout().lock(), &mut read);
        echoed.send(done.map(|()| read))
    });
    let status = child.wait().context("waiting for cargo")?;
    // A process that a test has left behind would hold the output open for ever.
    let (read, left) = match all.recv_timeout(GRACE) {
        Ok(read) => (read, 0),
        Err(_) => {
            let left = watched::kill_who_holds(&pipe);
            (all.recv().context("reading the output of cargo")?, left)
        }
    };
    summary.add(read?);
    Ok(status.success() && left == 0)
}

/// Copies `output` to `out` as it comes, also unfinished lines, and reads it.
fn echo(mut output: impl BufRead, out: &mut impl Write, summary: &mut Summary) -> Result<()> {
    let mut line = Vec::new();
    loop {
        let part = output.fill_buf().context("reading the output of cargo")?;
        if part.is_empty() {
            break;
        }
        out.write_all(part).and_then(|()| out.flush())?;
        let len = part.len();
        for &byte in part {
            if byte == b'\n' {
                summary.read_line(&String::from_utf8_lossy(&line));
                line.clear();
            } else {
                line.push(byte);
            }
        }
        output.consume(len);
    }
    summary.read_line(&String::from_utf8_lossy(&line));
    Ok(())
}

/// Has `runner` run each test program as [`NOBODY`], with a folder of its own for
/// HOME and TMPDIR, which lives as long as what is returned.
fn drop_privileges(
    runner: &mut Vec<OsString>,
    variables: &mut Vec<Variable>,
    root: &Path,
) -> Result<Option<TempDir>> {
    let user = fs::metadata("/proc/self")
        .context("reading /proc/self")?
        .uid();
    if user != 0 {
        eprintln!("xtask: not root: the tests run as user {user}, without privileges anyway");
        return Ok(None);
    }
    let home = TempDir::with_prefix("tenure-test-").context("making a folder for the tests")?;
    if let Some(closed) = closed_to_others(home.path().parent().unwrap_or(home.path()))? {
        bail!(
            "user {NOBODY} cannot get to {}: {} is closed to others; name an open folder in TMPDIR",
            home.path().display(),
            closed.display()
        );
    }
    // This program lies in cargo's target directory, as do the tests.
    let target = env::current_exe().context("looking for the target directory")?;
    if let Some(closed) = closed_to_others(target.parent().unwrap_or(root))? {
        let elsewhere = home.path().join("target");
        eprintln!(
            "xtask: {} is closed to user {NOBODY}: building in {} instead",
            closed.display(),
            elsewhere.display()
        );
        variables.push(("CARGO_TARGET_DIR".into(), elsewhere.into()));
    }
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).context("chmod")?;
    chown(home.path(), Some(NOBODY), Some(NOBODY)).context("chown")?;

    // `env` because the runner must not change cargo's own HOME and TMPDIR.
    runner.extend(["setpriv".into()]);
    runner.extend([
        format!("--reuid={NOBODY}").into(),
        format!("--regid={NOBODY}").into(),
    ]);
    runner.extend(["--clear-groups", "--no-new-privs", "--", "env"].map(OsString::from));
    for name in ["HOME", "TMPDIR"] {
        let mut variable = OsString::from(format!("{name}="));
        variable.push(home.path());
        runner.push(variable);
    }
    Ok(Some(home))
}

/// Returns the folder on the way to `folder` that keeps others out, if any.
fn closed_to_others(folder: &Path) -> Result<Option<PathBuf>> {
    let path = folder
        .canonicalize()
        .with_context(|| format!("looking at {}", folder.display()))?;
    Ok(first_closed(path.ancestors())?.map(Path::to_path_buf))
}

/// Returns the first folder that others may not pass through.
fn first_closed<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Result<Option<&'a Path>> {
    for folder in folders {
        let metadata = fs::metadata(folder);
        let metadata = metadata.with_context(|| format!("looking at {}", folder.display()))?;
        if metadata.permissions().mode() & 0o001 == 0 {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

fn host_triple() -> Result<String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let triple = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(triple.context("rustc -vV names no host")?.to_owned())
}

/// Returns cargo's option that has `runner` run the test programs of a target.
fn runner_option(triple: &str, runner: &[OsString]) -> Result<String> {
    let words = runner.iter().map(|word| {
        let word = word.to_str();
        // What Rust escapes, TOML escapes in the same way, but for odd characters.
        Ok(format!("{:?}", word.context("a path that is not UTF-8")?))
    });
    let words: Vec<String> = words.collect::<Result<_>>()?;
    Ok(format!("target.{triple}.runner=[{}]", words.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_echoed_and_read() {
        let output = "test a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored;\nno end";
        let mut echoed = Vec::new();
        let mut summary = Summary::default();
        echo(output.as_bytes(), &mut echoed, &mut summary).unwrap();
        assert_eq!(echoed, output.as_bytes());
        assert_eq!(summary.text(), "\n1 passed, 0 failed, 0 skipped\n");
    }

    #[test]
    fn a_closed_folder_on_the_way_is_found() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let open = |folder: &Path, mode| {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        };
        let folders = || [inner.as_path(), outer.path()];
        open(&inner, 0o755);
        open(outer.path(), 0o700);
        assert_eq!(first_closed(folders()).unwrap(), Some(outer.path()));
        open(outer.path(), 0o711);
        assert_eq!(first_closed(folders()).unwrap(), None);
    }

    #[test]
    fn the_runner_is_set_for_the_target() {
        let runner = ["/my tools/xtask", "watch", "--"].map(OsString::from);
        assert_eq!(
            runner_option("x86_64-unknown-linux-gnu", &runner).unwrap(),
            r#"target.x86_64-unknown-linux-gnu.runner=["/my tools/xtask","watch","--"]"#
        );
    }
}
