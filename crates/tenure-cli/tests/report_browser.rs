//! The page in a real browser: chromium, where it is installed.

use std::{
    ffi::OsStr,
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;
use tempfile::TempDir;

#[path = "report/common.rs"]
mod common;
use common::{page_of, record, unescape};

/// The names of the program in the packages of distributions.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A browser takes much memory.
    arguments.test_threads.get_or_insert(1);
    type Test = (&'static str, fn(&Browser));
    let tests: [Test; 3] = [
        (
            "page_draws_all_plots_without_a_console_message",
            all_plots_are_drawn,
        ),
        ("page_fits_a_phone_and_a_wide_screen", it_fits),
        ("page_differs_in_light_and_dark_mode", light_and_dark),
    ];
    let trial = |(name, test): Test| {
        Trial::ignorable_test(name, move || {
            let Some(browser) = Browser::find() else {
                return Ok(Completion::ignored_with("no chromium in PATH"));
            };
            test(&browser);
            Ok::<_, Failed>(Completion::Completed)
        })
    };
    libtest_mimic::run(&arguments, tests.map(trial).into()).exit_code()
}

/// A browser, with a folder for itself and for pages.
struct Browser {
    program: &'static str,
    folder: TempDir,
}

impl Browser {
    fn find() -> Option<Self> {
        let is_there = |name: &&&str| {
            let output = Command::new(name).arg("--version").output();
            output.is_ok_and(|output| output.status.success())
        };
        Some(Self {
            program: NAMES.iter().find(is_there)?,
            folder: tempfile::tempdir().unwrap(),
        })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Opens `page` and returns its standard output and the lines of its console.
    fn open(&self, page: &Path, arguments: &[&OsStr]) -> (String, Vec<String>) {
        let output = Command::new(self.program)
            // Its sandbox needs namespaces that a container seldom grants; the page
            // is our own, and there is no network in it.
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--enable-logging=stderr",
                "--hide-scrollbars",
                "--no-first-run",
            ])
            .arg(format!(
                "--user-data-dir={}",
                self.path("profile").display()
            ))
            .args(arguments)
            .arg(format!("file://{}", page.display()))
            .env("HOME", self.folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        let console = errors.lines().filter(|line| line.contains("CONSOLE"));
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            console.map(str::to_owned).collect(),
        )
    }

    /// Lays `page` out `width` pixels wide and returns what a script finds there.
    fn look(&self, page: &str, width: u32) -> Value {
        const SCRIPT: &str = r#"
            onload = () => {
                const page = document.querySelector("iframe").contentDocument;
                const plots = [...page.querySelectorAll("svg")];
                const box = (element) => element.getBoundingClientRect();
                const crowded = [...page.querySelectorAll("svg g")].filter((mark) =>
                    box(mark.querySelector(".way")).right > box(mark.querySelector(".figure")).left);
                document.title = JSON.stringify({
                    plots: plots.length,
                    drawn: plots.filter((plot) => box(plot).width > 200 && box(plot).height > 50).length,
                    marks: page.querySelectorAll("svg .mark").length,
                    crowded: crowded.map((mark) => mark.textContent),
                    width: page.documentElement.scrollWidth,
                });
            };"#;
        // Our own script is not the page's: its policy would stop it there.
        let quoted = page.replace('&', "&amp;").replace('"', "&quot;");
        let around = format!(
            "<!DOCTYPE html><meta charset=utf-8><title></title><script>{SCRIPT}</script>\
             <iframe style=\"width: {width}px; height: 900px; border: 0\" srcdoc=\"{quoted}\"></iframe>"
        );
        let path = self.path("around.html");
        fs::write(&path, around).unwrap();
        let (dom, console) = self.open(&path, &["--dump-dom".as_ref()]);
        assert_eq!(console, [""; 0]);
        let (_, rest) = dom.split_once("<title>").unwrap();
        let (title, _) = rest.split_once("</title>").unwrap();
        serde_json::from_str(&unescape(title)).unwrap()
    }
}

fn all_plots_are_drawn(browser: &Browser) {
    let page = page_of(&[&record()]);
    let path = browser.path("page.html");
    fs::write(&path, &page).unwrap();
    let (dom, console) = browser.open(&path, &["--dump-dom".as_ref()]);
    assert_eq!(console, [""; 0]);
    let plots = page.matches("<svg").count();
    assert!(plots >= 7, "{plots}");
    assert_eq!(dom.matches("<svg").count(), plots);
    let seen = browser.look(&page, 1200);
    assert_eq!([&seen["plots"], &seen["drawn"]], [plots, plots], "{seen}");
    assert_eq!(seen["marks"], page.matches("class=\"mark\"").count());
}

fn it_fits(browser: &Browser) {
    for page in [page_of(&[&record()]), page_of(&[&record(), &record()])] {
        for width in [360, 1200] {
            let seen = browser.look(&page, width);
            assert_eq!(seen["width"], width, "the page scrolls sideways: {seen}");
            assert_eq!(seen["crowded"], Value::Array(Vec::new()), "at {width}");
        }
    }
}

fn light_and_dark(browser: &Browser) {
    let path = browser.path("page.html");
    fs::write(&path, page_of(&[&record()])).unwrap();
    let shot = |name: &str, scheme: &str| {
        let image = browser.path(name);
        let mut to = std::ffi::OsString::from("--screenshot=");
        to.push(&image);
        let (_, console) = browser.open(&path, &[&to, scheme.as_ref()]);
        assert_eq!(console, [""; 0]);
        fs::read(image).unwrap()
    };
    let light = shot("light.png", "--blink-settings=preferredColorScheme=1");
    let dark = shot("dark.png", "--blink-settings=preferredColorScheme=0");
    assert!(light.starts_with(b"\x89PNG") && light.len() > 10_000);
    assert!(light != dark);
}
