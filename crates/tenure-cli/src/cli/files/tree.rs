//! Which files a command works on.

use std::path::PathBuf;

use clap::Args;

/// The paths, and what of the folders among them.
#[derive(Args, Clone, Debug)]
pub struct TreeArguments {
    /// Files, and folders with all files in them and below, in the order of their names. A
    /// file with several names (hard links) counts once
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,

    /// In folders, take only files that match: a pattern such as '*.safetensors', or with
    /// a slash for the path below the folder. May be repeated
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// In folders, leave out files and folders that match. May be repeated; of two patterns
    /// that match, --exclude counts
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// In folders, follow symbolic links. Without it they are left out; a PATH that is a
    /// symbolic link is always followed
    #[arg(long, short = 'L')]
    pub follow: bool,

    /// Stay on the file system of each PATH
    #[arg(long, short = 'x')]
    pub one_file_system: bool,
}
