//! A hit on a value that another process may have made: tenure's shared cache, and a server
//! behind a local socket.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fastrand::Rng;
use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use tempfile::TempDir;
use tenure::volatile::Priority;
use tenure::{CacheOptions, SharedCache};

use super::{HIT, byte_of};
use crate::measure::prelude::*;

const LEN: usize = 1 << 10;
const VALUES: usize = 4_000;
/// The figure of all hits: the clock adds less to their median than to their mean.
const MEDIAN: &str = "median of hits";

/// Makes the case; without the server it has tenure's way only.
pub fn case(settings: &Settings, notes: &mut Vec<String>) -> Result<Case> {
    let hits = settings.sizes.pick(&[5_000, 100_000, 200_000]);
    let seed = settings.seed;
    let mut ways = Vec::new();
    match Server::start() {
        Ok(_) => ways.push(
            way("memcached, a local socket", hits, seed, || {
                let mut server = Server::start()?;
                (0..VALUES).try_for_each(|key| server.set(key))?;
                Ok(server)
            })
            .baseline(),
        ),
        Err(why) => notes.push(format!("No memcached: {why:#}.")),
    }
    let shared = || {
        let maker = SharedCache::new(CacheOptions::new())?;
        for key in 0..VALUES {
            maker.insert(&key_of(key), &[byte_of(key); LEN], Priority::Normal)?;
        }
        // Attached once more, as another process attaches it.
        let fd = maker.as_fd().try_clone_to_owned()?;
        let user = SharedCache::from_fd(fd, CacheOptions::new())?;
        Ok(Shared(maker, user))
    };
    ways.push(way("tenure", hits, seed, shared).tenure());
    let name = format!("values of {}", bytes_text(LEN as f64));
    Ok(Case::new(name, ways)
        .in_table("A hit on a value that processes share")
        .comparing(MEDIAN))
}

/// A cache that returns a copy of a value, or nothing.
trait Copies {
    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool>;
}

fn key_of(key: usize) -> [u8; 8] {
    let mut text = [b'0'; 8];
    let mut rest = key;
    for digit in text.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    text
}

fn way<C: Copies + 'static>(
    name: &str,
    hits: usize,
    seed: u64,
    start: impl Fn() -> Result<C> + 'static,
) -> Way {
    Way::new(
        name,
        start,
        move |mut cache, recorder| {
            let mut rng = Rng::with_seed(seed);
            let mut value = Vec::new();
            let mut times = Vec::with_capacity(hits);
            let mut missed = 0;
            for _ in 0..hits {
                let key = rng.usize(..VALUES);
                let (is_hit, seconds) = recorder.measure(|| cache.copy(key, &mut value));
                match is_hit? {
                    true => {
                        let is_right = value.len() == LEN && value[LEN / 2] == byte_of(key);
                        ensure!(is_right, "a wrong value");
                        times.push(seconds);
                    }
                    false => missed += 1,
                }
            }
            times.sort_by(f64::total_cmp);
            let median = times.get(times.len() / 2).context("nothing was found")?;
            recorder.record(MEDIAN, Unit::Seconds, *median);
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            recorder.record(HIT, Unit::Seconds, mean);
            Ok((missed, cache))
        },
        move |(missed, _cache), _| {
            // A set of the shared cache's table may be full, and memory may be short.
            ensure!(missed <= hits / 20, "{missed} of {hits} look-ups missed");
            Ok(())
        },
    )
}

/// The value that has made the values, and another one that uses them.
struct Shared(
    #[expect(dead_code, reason = "keeps the file attached")] SharedCache,
    SharedCache,
);

impl Copies for Shared {
    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool> {
        let found = self.1.get(&key_of(key));
        into.clear();
        into.extend_from_slice(found.as_deref().unwrap_or_default());
        Ok(found.is_some())
    }
}

/// A memcached of its own, and a connection to it.
struct Server {
    child: Child,
    stream: BufReader<UnixStream>,
    _folder: TempDir,
}

impl Server {
    fn start() -> Result<Self> {
        const TRIES: u32 = 500;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("socket");
        let mut command = Command::new("memcached");
        command
            .arg("-s")
            .arg(&socket)
            .args(["-t", "1", "-m", "64"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        let prepare = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: `prepare` makes a system call and nothing else.
        let child = unsafe { command.pre_exec(prepare) }.spawn();
        let mut child = child.context("starting memcached")?;
        for _ in 0..TRIES {
            match UnixStream::connect(&socket) {
                Ok(stream) => {
                    return Ok(Self {
                        child,
                        stream: BufReader::new(stream),
                        _folder: folder,
                    });
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused
                    ) => {}
                Err(error) => return Err(error).context("connecting to memcached"),
            }
            if let Some(status) = child.try_wait()? {
                bail!("memcached has ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("memcached does not listen")
    }

    fn set(&mut self, key: usize) -> Result<()> {
        let mut request = b"set ".to_vec();
        request.extend(key_of(key));
        request.extend(format!(" 0 0 {LEN}\r\n").bytes());
        request.extend([byte_of(key); LEN]);
        request.extend(b"\r\n");
        self.stream.get_mut().write_all(&request)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line == "STORED\r\n", "memcached said {line:?}");
        Ok(())
    }
}

impl Copies for Server {
    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool> {
        let mut request = *b"get 00000000\r\n";
        request[4..12].copy_from_slice(&key_of(key));
        self.stream.get_mut().write_all(&request)?;
        let mut line = Vec::with_capacity(64);
        self.stream.read_until(b'\n', &mut line)?;
        if line == b"END\r\n" {
            return Ok(false);
        }
        ensure!(line.starts_with(b"VALUE "), "memcached said {line:?}");
        into.resize(LEN + b"\r\nEND\r\n".len(), 0);
        self.stream.read_exact(into)?;
        ensure!(
            into.ends_with(b"\r\nEND\r\n"),
            "memcached sends another length"
        );
        into.truncate(LEN);
        Ok(true)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It only fails when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
