//! As much of HTTP/1.1 as answers a request without a body.

use crate::metrics::CONTENT_TYPE;

/// The greatest length of a request's head, in bytes.
pub const MAX_HEAD_BYTES: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

/// The beginning of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Head {
    /// More bytes must follow.
    Partial,
    /// A GET or HEAD of this path, without its query.
    Get { path: String, with_body: bool },
    /// The answer to any other request.
    Refused(Response),
}

/// Parses the bytes received so far.
pub fn parse(received: &[u8]) -> Head {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(received) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if received.len() >= MAX_HEAD_BYTES => {
            return Head::Refused(Response::too_large());
        }
        Ok(httparse::Status::Partial) => return Head::Partial,
        Err(httparse::Error::TooManyHeaders) => return Head::Refused(Response::too_large()),
        Err(_) => return Head::Refused(Response::new("400 Bad Request", "not an HTTP request")),
    }
    let with_body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return Head::Refused(Response::wrong_method()),
    };
    let target = request.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    Head::Get {
        path: path.to_owned(),
        with_body,
    }
}

/// A body and its type.
#[derive(Debug, PartialEq, Eq)]
pub struct Body {
    kind: &'static str,
    text: String,
}

impl Body {
    pub fn metrics(text: String) -> Self {
        Self {
            kind: CONTENT_TYPE,
            text,
        }
    }

    pub fn html(text: &str) -> Self {
        Self {
            kind: "text/html; charset=utf-8",
            text: text.to_owned(),
        }
    }
}

/// A response, after which the connection is closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    status: &'static str,
    more: &'static str,
    body: Body,
}

impl Response {
    pub fn ok(body: Body) -> Self {
        Self {
            status: "200 OK",
            more: "",
            body,
        }
    }

    pub fn not_found() -> Self {
        Self::new("404 Not Found", "the metrics are at /metrics")
    }

    pub fn failed(why: &str) -> Self {
        Self::new("500 Internal Server Error", why)
    }

    pub fn busy() -> Self {
        Self::new("503 Service Unavailable", "too many connections")
    }

    pub fn timed_out() -> Self {
        Self::new("408 Request Timeout", "the request took too long")
    }

    fn too_large() -> Self {
        Self::new(
            "431 Request Header Fields Too Large",
            "the request is too large",
        )
    }

    fn wrong_method() -> Self {
        Self {
            more: "Allow: GET, HEAD\r\n",
            ..Self::new("405 Method Not Allowed", "only GET and HEAD")
        }
    }

    fn new(status: &'static str, why: &str) -> Self {
        let body = Body {
            kind: "text/plain; charset=utf-8",
            text: format!("{why}\n"),
        };
        Self {
            status,
            more: "",
            body,
        }
    }

    /// Returns the bytes to send; without the body in response to HEAD.
    pub fn bytes(&self, with_body: bool) -> Vec<u8> {
        let Self { status, more, body } = self;
        let (kind, len) = (body.kind, body.text.len());
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{more}\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
        );
        let body = if with_body { body.text.as_str() } else { "" };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &[u8]) -> &'static str {
        match parse(request) {
            Head::Partial => "partial",
            Head::Get { .. } => "get",
            Head::Refused(response) => &response.status[..3],
        }
    }

    #[test]
    fn request_is_parsed_when_its_head_is_complete() {
        let request = b"GET /metrics?a=b HTTP/1.1\r\nHost: a\r\n\r\n";
        for len in 0..request.len() {
            assert_eq!(status(&request[..len]), "partial", "{len}");
        }
        let get = Head::Get {
            path: "/metrics".to_owned(),
            with_body: true,
        };
        assert_eq!(parse(request), get);
        let Head::Get { with_body, .. } = parse(b"HEAD / HTTP/1.0\r\n\r\n") else {
            panic!("not parsed");
        };
        assert!(!with_body);
    }

    #[test]
    fn other_requests_are_refused_by_status() {
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status(b"\x16\x03\x01\x02"), "400");
        let long = [b"GET /".as_slice(), &[b'a'; MAX_HEAD_BYTES]].concat();
        assert_eq!(status(&long), "431");
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "A: b\r\n".repeat(MAX_HEADERS + 1)
        );
        assert_eq!(status(many.as_bytes()), "431");
    }

    #[test]
    fn response_to_head_has_the_length_and_no_body() {
        let response = Response::ok(Body::metrics("abc\n".to_owned()));
        let text = |with_body| String::from_utf8(response.bytes(with_body)).unwrap();
        assert!(text(true).ends_with("\r\n\r\nabc\n"));
        assert!(text(false).ends_with("\r\n\r\n"));
        for text in [text(true), text(false)] {
            assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
            assert!(text.contains("Content-Length: 4\r\n"), "{text}");
        }
    }
}
