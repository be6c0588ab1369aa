//! The daemon's configuration: one TOML file, in which every setting has a default.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weft_daemon::{Limits, Policy, Rates, Settings};
use weft_link::address::Wanted;
use weft_wire::packet::Integrity;

/// The configuration file if the command line names none.
pub const DEFAULT: &str = "/etc/weftd/weftd.toml";

/// All settings, as the file has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where programs attach.
    pub socket: PathBuf,
    /// Users whose programs may attach: names or numbers, or `*` for all.
    pub allow_users: Vec<String>,
    /// Groups whose programs may attach, in addition to those of the users.
    pub allow_groups: Vec<String>,
    /// The user that the daemon becomes once it has its sockets, by name; empty for none.
    pub user: String,
    /// Whether the kernel ends the daemon when it makes a system call outside of its filter.
    pub seccomp: bool,
    /// Frames.
    pub frames: u32,
    /// Which resident endpoint gives up its frame: `random`, `clock` or `lru`.
    pub policy: String,
    /// MiB of the file that is shared with a bundle. Its pages are allocated when they are touched.
    pub file_mib: u64,
    /// How long the daemon looks for work before it sleeps, in microseconds.
    pub spin_us: u64,
    /// How much is logged: `error`, `warn`, `info` or `debug`.
    pub log: String,
    /// The network to other hosts.
    pub network: NetworkConfig,
    /// Limits for users.
    pub limits: LimitsConfig,
    /// The weight of each user's endpoints, by the user's name or number: from 1 to 64.
    pub weights: BTreeMap<String, u32>,
}

/// The network to other hosts, as `WEFT_ADDR` and `WEFT_PORT` describe it for a program.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Addresses of this host, or `none` for no network. If empty, the addresses that other hosts reach it by.
    pub address: String,
    /// A UDP port, or a range of them. If empty, any port.
    pub port: String,
    /// What checksums of packets cover, with hosts that want the same. If empty, `WEFT_INTEGRITY` decides.
    pub integrity: String,
}

impl NetworkConfig {
    /// What checksums of packets should cover. `None` if the file does not say. An error if the value is not allowed.
    pub fn integrity(&self) -> Result<Option<Integrity>, ()> {
        match self.integrity.as_str() {
            "" => Ok(None),
            word => Integrity::from_word(word).map(Some).ok_or(()),
        }
    }
}

/// What all users together may hold, of which each may hold a share of what is left; and what each user may do in a second.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Endpoints.
    pub endpoints: u64,
    /// Lines between endpoints. 0 for a share of the kernel's limit; so for the other settings that may be 0.
    pub lines: u64,
    /// MiB of files that programs can have allocated, including system endpoints and bells.
    pub memory_mib: u64,
    /// Bundles that are attached.
    pub attachments: u64,
    /// Calls to other hosts that are not answered yet.
    pub calls: u64,
    /// MiB that other hosts have not taken, without the first 16 KiB of each line.
    pub under_way_mib: u64,
    /// Endpoints that each user may make in a second.
    pub endpoints_per_second: u64,
    /// Times in a second that an endpoint of each user may become resident.
    pub remappings_per_second: u64,
    /// Requests of each user that are served in a second.
    pub requests_per_second: u64,
}

/// Why a configuration cannot be used.
#[derive(thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}. Name another file with --config, or leave it out for the defaults")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The file is not valid TOML, or has a wrong name or type. The source names the line.
    #[error("{path}: {source}. weftd(8) has all settings with their defaults")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: basic_toml::Error,
    },
    /// The network cannot be used.
    #[error("{path}: in [network], {source}")]
    Network {
        /// The file.
        path: PathBuf,
        /// Why.
        source: weft_link::NetworkError,
    },
    /// A value is not allowed.
    #[error("{path}: {}{setting} is {value}, and should be {wanted}", line.map_or(String::new(), |line| format!("line {line}: ")))]
    Value {
        /// The file.
        path: PathBuf,
        /// Its line, if it was found.
        line: Option<usize>,
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// The values that it may have.
        wanted: &'static str,
    },
}

weft_wire::debug_says_display!(ConfigError);

impl Default for Config {
    fn default() -> Config {
        Config {
            socket: "/run/weftd/socket".into(),
            allow_users: vec!["*".into()],
            allow_groups: Vec::new(),
            user: String::new(),
            seccomp: true,
            frames: 96,
            policy: "clock".into(),
            file_mib: 1024,
            spin_us: 50,
            log: "info".into(),
            network: NetworkConfig::default(),
            limits: LimitsConfig::default(),
            weights: BTreeMap::new(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        let Rates { endpoints, remappings, requests } = Rates::default();
        LimitsConfig {
            endpoints: 1 << 20,
            lines: 0,
            memory_mib: 0,
            attachments: 4096,
            calls: 4096,
            under_way_mib: 0,
            endpoints_per_second: endpoints,
            remappings_per_second: remappings,
            requests_per_second: requests,
        }
    }
}

impl Config {
    /// Reads a file. Without a name it reads the default file, or takes the defaults if that does not exist.
    ///
    /// # Errors
    /// If there is no such file, or something in it is not allowed.
    pub fn read(path: Option<&Path>) -> Result<Config, ConfigError> {
        let name = path.unwrap_or(Path::new(DEFAULT));
        let text = match std::fs::read_to_string(name) {
            Ok(text) => text,
            Err(error) if path.is_none() && error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(ConfigError::Read { path: name.into(), source }),
        };
        Config::parse(name, &text)
    }

    /// Parses the text of a file with this name.
    ///
    /// # Errors
    /// If something in it is not allowed.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let config: Config =
            basic_toml::from_str(text).map_err(|source| ConfigError::Parse { path: path.into(), source })?;
        let wrong = |setting: &'static str, value: String, wanted| {
            // A weight is listed under the name of its user.
            let name = value.split(" = ").next().filter(|_| setting == "weights").unwrap_or(setting);
            let says = |line: &str| line.trim_start().trim_start_matches('"').starts_with(name);
            let line = text.lines().position(says).map(|before| before + 1);
            Err(ConfigError::Value { path: path.into(), line, setting, value, wanted })
        };
        if !(1..=1 << 16).contains(&config.frames) {
            return wrong("frames", config.frames.to_string(), "a number from 1 to 65536");
        }
        if config.policy().is_none() {
            return wrong("policy", config.policy, "random, clock or lru");
        }
        if !(2..=1 << 16).contains(&config.file_mib) {
            return wrong("file_mib", config.file_mib.to_string(), "a number from 2 to 65536");
        }
        if config.spin_us > 1_000_000 {
            return wrong("spin_us", config.spin_us.to_string(), "a number from 0 to 1000000");
        }
        if config.level().is_none() {
            return wrong("log", config.log, "error, warn, info or debug");
        }
        let under_way = config.limits.under_way_mib;
        if under_way > 1 << 20 {
            return wrong("under_way_mib", under_way.to_string(), "a number from 0 to 1048576");
        }
        let Rates { endpoints, remappings, requests } = config.rates();
        for (setting, rate) in [
            ("endpoints_per_second", endpoints),
            ("remappings_per_second", remappings),
            ("requests_per_second", requests),
        ] {
            if !(1..=1_000_000_000).contains(&rate) {
                return wrong(setting, rate.to_string(), "a number from 1 to 1000000000");
            }
        }
        if config.network.integrity().is_err() {
            return wrong("integrity", config.network.integrity, "full or header");
        }
        let NetworkConfig { address, port, .. } = &config.network;
        if let Err(error) = Wanted::from_settings(Some(address), Some(port)) {
            return Err(ConfigError::Network { path: path.into(), source: error });
        }
        if let Some((user, weight)) = config.weights.iter().find(|(_, weight)| !(1..=64).contains(*weight)) {
            return wrong("weights", format!("{user} = {weight}"), "a number from 1 to 64 for each user");
        }
        if !config.socket.is_absolute() {
            return wrong("socket", config.socket.display().to_string(), "an absolute path");
        }
        Ok(config)
    }

    /// Which resident endpoint gives up its frame.
    pub fn policy(&self) -> Option<Policy> {
        match self.policy.as_str() {
            "random" => Some(Policy::Random),
            "clock" => Some(Policy::Clock),
            "lru" => Some(Policy::Lru),
            _ => None,
        }
    }

    /// How much is logged.
    pub fn level(&self) -> Option<tracing::Level> {
        match self.log.as_str() {
            "error" => Some(tracing::Level::ERROR),
            "warn" => Some(tracing::Level::WARN),
            "info" => Some(tracing::Level::INFO),
            "debug" => Some(tracing::Level::DEBUG),
            _ => None,
        }
    }

    /// What each user may do in a second.
    fn rates(&self) -> Rates {
        let LimitsConfig { endpoints_per_second, remappings_per_second, requests_per_second, .. } = self.limits;
        Rates { endpoints: endpoints_per_second, remappings: remappings_per_second, requests: requests_per_second }
    }

    /// The engine's settings, without those that take memory.
    pub fn settings(&self, seed: u64) -> Settings {
        let LimitsConfig { endpoints, attachments, calls, .. } = self.limits;
        let limits = Limits { endpoints, attachments, calls, ..Limits::default() };
        let policy = self.policy().unwrap_or_default();
        Settings { frames: self.frames, policy, limits, rates: self.rates(), seed, ..Settings::default() }
    }

    /// Bytes of a bundle's file.
    pub fn file_bytes(&self) -> usize {
        usize::try_from(self.file_mib << 20).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("weftd.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_defaults() {
        let config = parse("").expect("all has a default");
        assert_eq!(
            (config.frames, config.policy(), config.allow_users),
            (96, Some(Policy::Clock), vec!["*".to_owned()])
        );
    }

    /// The names that a table of the file may have, as the error about an unknown one lists them.
    fn names(table: &str) -> Vec<String> {
        let error = parse(&format!("{table}\nno_such_name = 1\n")).expect_err("there is no such setting");
        error.split('`').skip(3).step_by(2).map(str::to_owned).collect()
    }

    #[test]
    fn the_file_of_all_settings_has_each_with_its_default() {
        let file = crate::manual::SETTINGS;
        assert_eq!(format!("{:?}", parse(file).expect("it can be used")), format!("{:?}", Config::default()));
        let has = |name: &str| {
            file.lines().any(|line| line.starts_with(&format!("{name} = ")) || line.starts_with(&format!("[{name}]")))
        };
        for table in ["", "[network]", "[limits]"] {
            let names = names(table);
            assert!(names.len() >= 2, "{table} {names:?}");
            let missing: Vec<&String> = names.iter().filter(|name| !has(name)).collect();
            assert!(missing.is_empty(), "crates/weftd/weftd.toml lacks {missing:?} of {table:?}");
        }
        assert!(!has("no_such_name"));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        for (text, words) in [
            ("frames = 0", &["line 1: frames is 0", "from 1 to 65536"][..]),
            ("policy = \"best\"", &["policy is best", "random, clock or lru"]),
            ("\nfrmaes = 8", &["unknown field `frmaes`", "frames"]),
            ("frames = \"many\"", &["line 1", "u32"]),
            ("[limits]\nendpoint = 1", &["unknown field `endpoint`"]),
            ("[limits]\nrequests_per_second = 0", &["requests_per_second is 0", "from 1 to 1000000000"]),
            ("socket = \"here\"", &["absolute path"]),
            ("spin_us = 2000000", &["spin_us is 2000000"]),
            ("file_mib = 1", &["file_mib is 1"]),
            ("[network]\nport = \"70000\"", &["[network]", "70000", "a port from 1 to 65535"]),
            ("[network]\naddress = \"here\"", &["[network]", "here"]),
            ("[network]\nintegrity = \"none\"", &["line 2: integrity is none", "full or header"]),
            ("[limits]\nunder_way_mib = 2000000", &["line 2: under_way_mib is 2000000"]),
            ("log = \"loud\"", &["log is loud", "debug"]),
            ("[weights]\n\nroot = 65", &["line 3: weights is root = 65", "from 1 to 64"]),
        ] {
            let error = parse(text).expect_err("not allowed");
            assert!(error.starts_with("weftd.toml: "), "{error}");
            assert!(words.iter().all(|word| error.contains(word)), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_that_is_named_must_be_there() {
        let error = Config::read(Some(Path::new("/nonexistent/weftd.toml"))).expect_err("it is not there").to_string();
        assert!(error.contains("/nonexistent/weftd.toml") && error.contains("--config"), "{error}");
    }
}
