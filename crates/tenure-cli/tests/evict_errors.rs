//! `tenure evict` on a file system that cannot write: nothing is lost.

use std::process::{Command, ExitCode};

use assert_cmd::cargo::cargo_bin_cmd;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

fn main() -> ExitCode {
    let name = "dirty_pages_that_cannot_be_written_stay";
    let trials = vec![Trial::ignorable_test(
        name,
        dirty_pages_that_cannot_be_written_stay,
    )];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The status of the script where the machine lacks what it needs.
const LACKS: i32 = 77;

/// Makes an ext4 of 32 MiB in a file on a tmpfs of 6 MiB, in a mount namespace that goes with
/// the script, and evicts 12 MiB of it.
const SCRIPT: &str = r#"
mkdir "$1/below" "$1/above"
mount -t tmpfs -o size=6M none "$1/below" || exit 77
truncate -s 32M "$1/below/image"
mkfs.ext4 -qF -E lazy_itable_init=0,nodiscard -O ^has_journal "$1/below/image" || exit 77
mount -o loop "$1/below/image" "$1/above" || exit 77
for n in 1 2 3; do
    head -c 4M /dev/urandom > "$1/source$n"
    cp "$1/source$n" "$1/above/file$n"
done
"$2" evict --json "$1/above"
status=$?
for n in 1 2 3; do
    cmp "$1/source$n" "$1/above/file$n" || exit 1
done
exit $status
"#;

fn dirty_pages_that_cannot_be_written_stay() -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let tenure = cargo_bin_cmd!("tenure").get_program().to_owned();
    let script = Command::new("unshare")
        .args(["--mount", "sh", "-c", SCRIPT, "sh"])
        .arg(folder.path())
        .arg(tenure)
        .output();
    let Ok(output) = script else {
        return Ok(Completion::ignored_with("unshare is not installed"));
    };
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.code() {
        // Also where unshare itself is refused.
        Some(LACKS) => Ok(Completion::ignored_with("no loop device, or no mkfs.ext4")),
        _ if told.contains("unshare failed") => Ok(Completion::ignored_with("no mount namespaces")),
        Some(3) if text.contains("cannot be written") => Ok(Completion::Completed),
        status => Err(format!("{status:?}\n{text}{told}").into()),
    }
}
