//! Tells systemd about the state of the service: sd_notify(3).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use crate::files::complaints::Complaints;

/// Sends the state to the socket that NOTIFY_SOCKET names, if it does.
pub fn notify(state: &str, complaints: &Complaints) {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = address(name.as_bytes())
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        complaints.note(
            Path::new(&name),
            format_args!("the service manager cannot be told: {error}"),
        );
    }
}

/// A name that begins with `@` is one of the abstract namespace.
fn address(name: &[u8]) -> io::Result<SocketAddr> {
    match name.split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)),
    }
}
