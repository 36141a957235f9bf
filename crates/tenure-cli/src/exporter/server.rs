//! Connections: a bounded number, each for a bounded time.

use std::{
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

use super::http::{Head, MAX_HEAD_BYTES, Response, parse};

/// The greatest number of connections at one time: a thread serves each. Others are told
/// that the server is busy.
const MAX_CONNECTIONS: usize = 32;

/// How long a client may take to send its request, and to receive the response.
const MAX_DURATION: Duration = Duration::from_secs(10);

/// How long, and how much, the server reads of what a client still sends after the
/// response: closing a connection with unread data would destroy the response.
const LINGER: Duration = Duration::from_secs(1);
const MAX_LINGER_BYTES: usize = 256 << 10;

/// The pause after a failed `accept`, which without a free descriptor fails at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Starts threads that serve connections as long as the process runs.
pub fn start(
    listener: TcpListener,
    answer: impl Fn(&str) -> Response + Send + Sync + 'static,
) -> Result<()> {
    let answer = Arc::new(answer);
    let open = Arc::new(AtomicUsize::new(0));
    let accept = move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                thread::sleep(PAUSE);
                continue;
            };
            let slot = Slot::take(&open);
            if slot.is_full {
                refuse(stream);
                continue;
            }
            let answer = Arc::clone(&answer);
            let serve = move || {
                // A client that goes away, or is too slow, is its own fault.
                let _ = serve(&stream, &*answer);
                drop(slot);
            };
            // Without a thread the connection is closed.
            let _ = thread::Builder::new()
                .name("connection".into())
                .spawn(serve);
        }
    };
    let accept = thread::Builder::new().name("accept".into()).spawn(accept);
    accept.map(drop).context("starting a thread")
}

/// A place among the connections, given back when it is dropped.
struct Slot {
    open: Arc<AtomicUsize>,
    is_full: bool,
}

impl Slot {
    fn take(open: &Arc<AtomicUsize>) -> Self {
        let before = open.fetch_add(1, Ordering::Relaxed);
        Self {
            open: Arc::clone(open),
            is_full: before >= MAX_CONNECTIONS,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells a client that there are too many, without waiting for it.
fn refuse(stream: TcpStream) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = (&stream).write(&Response::busy().bytes(true));
        let _ = stream.shutdown(Shutdown::Write);
    }
}

fn serve(stream: &TcpStream, answer: &impl Fn(&str) -> Response) -> io::Result<()> {
    let until = Instant::now() + MAX_DURATION;
    let (response, with_body) = match read_head(stream, until)? {
        Head::Get { path, with_body } => (answer(&path), with_body),
        Head::Refused(response) => (response, true),
        Head::Partial => return Ok(()),
    };
    // A reading of large processes takes time that is not the client's.
    write(
        stream,
        &response.bytes(with_body),
        Instant::now() + MAX_DURATION,
    )?;
    stream.shutdown(Shutdown::Write)?;
    linger(stream)
}

/// Reads the head of the request; `Partial` if the client closes the connection before.
fn read_head(mut stream: &TcpStream, until: Instant) -> io::Result<Head> {
    let mut head = Vec::new();
    loop {
        let mut part = [0; 1024];
        let len = match before(until).and_then(|left| {
            stream.set_read_timeout(Some(left))?;
            let free = part.len().min(MAX_HEAD_BYTES - head.len());
            stream.read(&mut part[..free])
        }) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if is_timeout(&error) => return Ok(Head::Refused(Response::timed_out())),
            Err(error) => return Err(error),
        };
        head.extend_from_slice(&part[..len]);
        match parse(&head) {
            Head::Partial if len > 0 => {}
            done => return Ok(done),
        }
    }
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(before(until)?))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => bytes = &bytes[len..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn linger(mut stream: &TcpStream) -> io::Result<()> {
    let until = Instant::now() + LINGER;
    let mut left = MAX_LINGER_BYTES;
    let mut part = [0; 4096];
    while left > 0 {
        stream.set_read_timeout(Some(before(until)?))?;
        match stream.read(&mut part)? {
            0 => break,
            len => left = left.saturating_sub(len),
        }
    }
    Ok(())
}

/// Returns the time that is left, which is never zero: a timeout of zero would be none.
fn before(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}
