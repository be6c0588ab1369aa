//! The manual page weftd(8): from the command line's definition, and from the file of all settings.

use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;
use std::io::{self, Write};

/// All settings with their defaults.
pub const SETTINGS: &str = include_str!("../weftd.toml");

const DESCRIPTION: &[&str] = &[
    "weftd owns this host's link to others, and serves the endpoints of any number of programs that do not trust each other. Programs find it \
     by its socket and need no change; without it each of them is its own network interface.",
    "It stays in the foreground and logs to standard error. Programs can cause many lines of a kind: it logs one a second, and the number \
     of the others.",
    "Once it serves it has no capability. The kernel ends it if it makes a system call that the daemon never makes: the exit is by SIGSYS, \
     and the kernel's log has a line with type=1326 and the number of the call.",
];

/// Rows of a list on the page: a name, and its purpose.
type Rows = &'static [(&'static str, &'static str)];

const FILES: Rows = &[
    ("/etc/weftd/weftd.toml", "the configuration"),
    (
        "/etc/weftd/user",
        "the number of the user that programs trust besides root, if the daemon is not started as root",
    ),
    ("/run/weftd/socket", "where programs attach. It stays when the daemon ends; the next one replaces it"),
    (
        "/run/weftd/secret",
        "a secret by which the next daemon knows the names of running programs. Only the daemon's user may read it",
    ),
    ("/run/weftd/port", "the UDP port, which the next daemon takes again"),
];

const ENVIRONMENT: Rows = &[
    ("WEFT_SUSPICION", "for how many milliseconds a host may be silent before messages to it come back"),
    ("WEFT_CONGESTION", "delay, or fixed for a window that does not depend on the delay"),
    ("WEFT_INTEGRITY", "full, or header. The setting integrity of the configuration takes precedence"),
    ("LISTEN_FDS, LISTEN_PID", "set by systemd when it passes a socket; weftd then makes none"),
    ("NOTIFY_SOCKET", "set by systemd; weftd reports there when it serves and when it ends"),
];

const SIGNALS: Rows = &[(
    "SIGTERM, SIGINT",
    "end the daemon. Programs get back their messages that were under way, and go on without it",
)];

/// Writes the page.
///
/// # Errors
/// The error of the writer.
pub fn write(command: clap::Command, to: &mut dyn Write) -> io::Result<()> {
    let page = Man::new(command).section("8").manual("System administration");
    page.render_title(to)?;
    Roff::new().control("ad", ["l"]).control("nh", []).to_writer(to)?; // lines neither stretched nor hyphenated
    page.render_name_section(to)?;
    page.render_synopsis_section(to)?;
    let mut own = Roff::new();
    own.control("SH", ["DESCRIPTION"]);
    for text in DESCRIPTION {
        own.control("PP", []).text([roman(*text)]);
    }
    own.to_writer(to)?;
    page.render_options_section(to)?;
    let mut own = Roff::new();
    own.control("SH", ["CONFIGURATION"]);
    own.text([roman("A TOML file. Every setting has a default. These are all settings with their defaults:")]);
    own.control("nf", []);
    for line in SETTINGS.lines() {
        own.text([roman(line)]);
    }
    own.control("fi", []);
    for (title, rows) in [("FILES", FILES), ("ENVIRONMENT", ENVIRONMENT), ("SIGNALS", SIGNALS)] {
        own.control("SH", [title]);
        for (name, what) in rows {
            own.control("TP", []).text([bold(*name)]).text([roman(*what)]);
        }
    }
    own.control("SH", ["SEE ALSO"]).text([bold("weft"), roman("(1), "), bold("systemd.socket"), roman("(5)")]);
    own.to_writer(to)?;
    page.render_version_section(to)
}
