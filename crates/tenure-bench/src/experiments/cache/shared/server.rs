//! Servers behind a local socket.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, geteuid, set_parent_process_death_signal};
use tempfile::TempDir;

use super::{Copies, LEN, byte_of, key_of};
use crate::measure::prelude::*;

/// A server, and how to talk to it.
pub struct Software {
    pub name: &'static str,
    program: &'static str,
    arguments: fn(&mut Command, &Path),
    /// The texts before the key and behind it in a request to insert a value.
    set: [&'static str; 2],
    stored: &'static str,
    get: [&'static str; 2],
    /// The first line of the answer to a miss, and the beginning of that to a hit.
    answers: [&'static str; 2],
    /// The last line of that, behind the value.
    end: &'static str,
}

pub const MEMCACHED: Software = Software {
    name: "memcached",
    program: "memcached",
    arguments: |command, socket| {
        command.arg("-s").arg(socket).args(["-t", "1", "-m", "64"]);
        if geteuid().is_root() {
            command.args(["-u", "root"]);
        }
    },
    set: ["set ", " 0 0 1024\r\n"],
    stored: "STORED\r\n",
    get: ["get ", "\r\n"],
    answers: ["END\r\n", "VALUE "],
    end: "\r\nEND\r\n",
};

pub const REDIS: Software = Software {
    name: "redis",
    program: "redis-server",
    arguments: |command, socket| {
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        command.arg("--unixsocket").arg(socket);
    },
    set: ["*3\r\n$3\r\nSET\r\n$8\r\n", "\r\n$1024\r\n"],
    stored: "+OK\r\n",
    get: ["*2\r\n$3\r\nGET\r\n$8\r\n", "\r\n"],
    answers: ["$-1\r\n", "$1024\r\n"],
    end: "\r\n",
};

const _: () = assert!(LEN == 1024, "the requests say so");

/// A server of its own, and a connection to it.
pub struct Server {
    software: &'static Software,
    child: Child,
    stream: BufReader<UnixStream>,
    _folder: TempDir,
}

impl Server {
    pub fn start(software: &'static Software) -> Result<Self> {
        const TRIES: u32 = 500;
        let name = software.name;
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("socket");
        let mut command = Command::new(software.program);
        (software.arguments)(&mut command, &socket);
        command
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let prepare = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: `prepare` makes a system call and nothing else.
        let child = unsafe { command.pre_exec(prepare) }.spawn();
        let mut child = child.with_context(|| format!("starting {}", software.program))?;
        for _ in 0..TRIES {
            match UnixStream::connect(&socket) {
                Ok(stream) => {
                    return Ok(Self {
                        software,
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
                Err(error) => return Err(error).with_context(|| format!("connecting to {name}")),
            }
            if let Some(status) = child.try_wait()? {
                bail!("{name} has ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill()?;
        child.wait()?;
        bail!("{name} does not listen")
    }

    fn send(&mut self, [before, after]: [&str; 2], key: usize, value: &[u8]) -> Result<()> {
        let mut request = before.as_bytes().to_vec();
        request.extend(key_of(key));
        request.extend(after.bytes());
        request.extend(value);
        Ok(self.stream.get_mut().write_all(&request)?)
    }
}

impl Copies for Server {
    fn set(&mut self, key: usize) -> Result<()> {
        let mut value = [byte_of(key); LEN].to_vec();
        value.extend(b"\r\n");
        self.send(self.software.set, key, &value)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let Software { name, stored, .. } = self.software;
        ensure!(line == *stored, "{name} said {line:?}");
        Ok(())
    }

    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool> {
        self.send(self.software.get, key, &[])?;
        let mut line = Vec::with_capacity(64);
        self.stream.read_until(b'\n', &mut line)?;
        let Software {
            name, answers, end, ..
        } = self.software;
        if line == answers[0].as_bytes() {
            return Ok(false);
        }
        let is_hit = line.starts_with(answers[1].as_bytes());
        ensure!(is_hit, "{name} said {line:?}");
        into.resize(LEN + end.len(), 0);
        self.stream.read_exact(into)?;
        let has_end = into.ends_with(end.as_bytes());
        ensure!(has_end, "{name} sends another length");
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
