//! The daemon's configuration: one TOML file, in which everything has a default.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weft_daemon::{Limits, Policy, Settings};

/// Where the configuration is looked for, if the command line does not say.
pub const DEFAULT: &str = "/etc/weftd/weftd.toml";

/// All settings, as the file has them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where programs attach.
    pub socket: PathBuf,
    /// Whose programs may attach: names or numbers of users, or `*` for all.
    pub allow_users: Vec<String>,
    /// The same for groups, which count beside the users.
    pub allow_groups: Vec<String>,
    /// Frames.
    pub frames: u32,
    /// How an endpoint is chosen that gives its frame away: `random`, `clock` or `lru`.
    pub policy: String,
    /// MiB of the file that is shared with a bundle. Its pages are allocated when they are touched.
    pub file_mib: u64,
    /// How long the daemon looks for work before it sleeps, in microseconds.
    pub spin_us: u64,
    /// How much is logged: `error`, `warn`, `info` or `debug`.
    pub log: String,
    /// What all users together may hold.
    pub limits: LimitsConfig,
    /// How much service each endpoint of a user gets beside others, by name or number: from 1 to 64.
    pub weights: BTreeMap<String, u32>,
}

/// What all users together may hold. One may hold a share of what is left.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Endpoints.
    pub endpoints: u64,
    /// Lines between endpoints.
    pub lines: u64,
    /// MiB of the parts of endpoints.
    pub memory_mib: u64,
    /// Bundles that are attached.
    pub attachments: u64,
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
    /// It is no such TOML. The source names the line.
    #[error("{path}: {source}. weftd(8) has all settings with their defaults")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: basic_toml::Error,
    },
    /// A value is not allowed.
    #[error("{path}: {setting} is {value}, and should be {wanted}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The setting.
        setting: &'static str,
        /// What it says.
        value: String,
        /// What it may say.
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
            frames: 96,
            policy: "clock".into(),
            file_mib: 1024,
            spin_us: 50,
            log: "info".into(),
            limits: LimitsConfig::default(),
            weights: BTreeMap::new(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> LimitsConfig {
        LimitsConfig { endpoints: 1 << 20, lines: 1 << 22, memory_mib: 1 << 20, attachments: 4096 }
    }
}

impl Config {
    /// Reads a file. Without a name it reads the usual one, or takes the defaults if there is none.
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

    /// Reads the text of a file of this name.
    ///
    /// # Errors
    /// If something in it is not allowed.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        let config: Config =
            basic_toml::from_str(text).map_err(|source| ConfigError::Parse { path: path.into(), source })?;
        let wrong =
            |setting, value: String, wanted| Err(ConfigError::Value { path: path.into(), setting, value, wanted });
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
        if let Some((user, weight)) = config.weights.iter().find(|(_, weight)| !(1..=64).contains(*weight)) {
            return wrong("weights", format!("{user} = {weight}"), "a number from 1 to 64 for each user");
        }
        if !config.socket.is_absolute() {
            return wrong("socket", config.socket.display().to_string(), "an absolute path");
        }
        Ok(config)
    }

    /// How an endpoint is chosen that gives its frame away.
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

    /// What the engine is set to.
    pub fn settings(&self, seed: u64) -> Settings {
        let LimitsConfig { endpoints, lines, memory_mib, attachments } = self.limits;
        let limits = Limits { endpoints, lines, pages: memory_mib.saturating_mul(256), attachments };
        let policy = self.policy().unwrap_or_default();
        Settings { frames: self.frames, policy, limits, seed, ..Settings::default() }
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

    #[test]
    fn what_is_wrong_is_named_with_what_is_allowed() {
        for (text, words) in [
            ("frames = 0", &["frames is 0", "from 1 to 65536"][..]),
            ("policy = \"best\"", &["policy is best", "random, clock or lru"]),
            ("\nfrmaes = 8", &["unknown field `frmaes`", "frames"]),
            ("frames = \"many\"", &["line 1", "u32"]),
            ("[limits]\nendpoint = 1", &["unknown field `endpoint`"]),
            ("socket = \"here\"", &["absolute path"]),
            ("spin_us = 2000000", &["spin_us is 2000000"]),
            ("file_mib = 1", &["file_mib is 1"]),
            ("log = \"loud\"", &["log is loud", "debug"]),
            ("[weights]\nroot = 65", &["weights is root = 65", "from 1 to 64"]),
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
