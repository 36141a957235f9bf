//! `tenure exporter` as Prometheus and as hostile clients see it.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Trial};
use rustix::process::{Pid, Signal, kill_process};

fn main() -> ExitCode {
    macro_rules! trials {
        ($($test:ident),* $(,)?) => {
            vec![$(Trial::ignorable_test(stringify!($test), || Ok($test()))),*]
        };
    }
    let trials = trials![
        get_of_metrics_returns_the_document,
        other_requests_are_answered_by_status,
        silent_clients_do_not_hold_up_others,
        too_many_connections_are_refused_until_some_end,
        request_without_end_is_refused,
        ipv6_address_is_served,
        absent_cgroup_is_waited_for,
        taken_port_is_one_line_and_status_1,
        signals_end_it_with_status_0,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Longer than anything here takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// An exporter, ended when it is dropped.
struct Exporter {
    child: Child,
    address: SocketAddr,
}

impl Exporter {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .arg("exporter")
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on http://");
        let address = address.and_then(|line| line.strip_suffix("/metrics\n"));
        let address = address.unwrap_or_else(|| panic!("{line:?}"));
        Self {
            address: address.parse().unwrap(),
            child,
        }
    }

    /// Shows this process, and only that.
    fn of_this_process() -> Self {
        Self::start(&["--listen=127.0.0.1:0", &std::process::id().to_string()])
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        stream
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn status(response: &str) -> &str {
    response.split(' ').nth(1).unwrap_or(response)
}

fn get_of_metrics_returns_the_document() -> Completion {
    let exporter = Exporter::of_this_process();
    let response = exporter.get("/metrics?a=b");
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert_eq!(status(head), "200");
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(head.contains(kind), "{head}");
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{head}"
    );
    let pid = std::process::id();
    assert!(
        body.contains(&format!("tenure_process_resident_bytes{{pid=\"{pid}\"")),
        "{body}"
    );
    assert!(body.ends_with("# EOF\n"), "{body}");
    Completion::Completed
}

fn other_requests_are_answered_by_status() -> Completion {
    let exporter = Exporter::of_this_process();
    assert!(exporter.get("/").contains("<a href=\"/metrics\">"));
    assert_eq!(status(&exporter.get("/other")), "404");
    let post = exporter.ask("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!(status(&post), "405");
    assert_eq!(status(&exporter.ask("\u{1}\u{2}\r\n\r\n")), "400");
    let head = exporter.ask("HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(
        status(&head) == "200" && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    Completion::Completed
}

fn silent_clients_do_not_hold_up_others() -> Completion {
    let exporter = Exporter::of_this_process();
    let mut silent: Vec<_> = (0..20).map(|_| exporter.connect()).collect();
    for stream in &mut silent {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
    }
    assert_eq!(status(&exporter.get("/metrics")), "200");
    // Half a request is no request, but its end may come late.
    silent[7].write_all(b" a\r\n\r\n").unwrap();
    let mut response = String::new();
    silent[7].read_to_string(&mut response).unwrap();
    // On a machine that stood still for ten seconds it came too late.
    assert!(["200", "408"].contains(&status(&response)), "{response}");
    Completion::Completed
}

/// Returns the response, which may be torn: the server does not wait for a client that it
/// refuses.
fn response_or_nothing(mut stream: &TcpStream) -> String {
    let mut response = Vec::new();
    match stream.read_to_end(&mut response) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(response).unwrap(),
    }
}

fn too_many_connections_are_refused_until_some_end() -> Completion {
    let exporter = Exporter::of_this_process();
    // Each connection before has been accepted, because they are accepted in order. Those
    // that were served first time out no sooner than after ten seconds; then others may
    // take their places, which is as well.
    let open: Vec<_> = (0..100).map(|_| exporter.connect()).collect();
    let last = response_or_nothing(open.last().unwrap());
    assert!(["503", "408", ""].contains(&status(&last)), "{last}");
    drop(open);
    // The server notices by and by.
    let mut tries = (0..600).map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        let mut stream = exporter.connect();
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        status(&response_or_nothing(&stream)) == "200"
    });
    assert!(tries.any(|is_served| is_served));
    Completion::Completed
}

fn request_without_end_is_refused() -> Completion {
    let exporter = Exporter::of_this_process();
    let response = exporter.ask(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(20_000)));
    assert_eq!(status(&response), "431");
    Completion::Completed
}

fn ipv6_address_is_served() -> Completion {
    if TcpListener::bind("[::1]:0").is_err() {
        return Completion::ignored_with("this machine has no IPv6 loopback address");
    }
    let exporter = Exporter::start(&["--listen=[::1]:0", &std::process::id().to_string()]);
    assert!(exporter.address.is_ipv6());
    assert_eq!(status(&exporter.get("/metrics")), "200");
    Completion::Completed
}

fn absent_cgroup_is_waited_for() -> Completion {
    let mut exporter = Exporter::start(&["--listen=127.0.0.1:0", "--cgroup=/no/such/group"]);
    let response = exporter.get("/metrics");
    assert_eq!(status(&response), "200");
    assert!(!response.contains("tenure_cgroup_"), "{response}");
    let down = "\ntenure_target_up{kind=\"cgroup\",target=\"/no/such/group\"} 0\n";
    assert!(response.contains(down), "{response}");
    exporter.child.kill().unwrap();
    let mut errors = String::new();
    let mut stderr = exporter.child.stderr.take().unwrap();
    stderr.read_to_string(&mut errors).unwrap();
    let expected = "tenure: there is no memory cgroup /no/such/group; waiting for it\n";
    assert_eq!(errors, expected);
    Completion::Completed
}

fn taken_port_is_one_line_and_status_1() -> Completion {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["exporter", "--listen", &address])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(output.stdout.is_empty());
    assert!(
        errors.starts_with(&format!("tenure: listening on {address}: ")),
        "{errors}"
    );
    assert!(errors.ends_with("another program has the port; name another with --listen\n"));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    Completion::Completed
}

fn signals_end_it_with_status_0() -> Completion {
    for signal in [Signal::TERM, Signal::INT] {
        let mut exporter = Exporter::of_this_process();
        // A client that waits does not matter.
        let _waiting = exporter.connect();
        kill_process(Pid::from_child(&exporter.child), signal).unwrap();
        assert_eq!(exporter.child.wait().unwrap().code(), Some(0));
    }
    Completion::Completed
}
