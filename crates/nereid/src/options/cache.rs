//! The options of the response cache. It is not built yet: they are checked and reported, so that a command line that has
//! them starts the server.

use clap::{ArgAction, Args};

use super::without_effect;

/// The options of the response cache.
#[derive(Debug, Args)]
#[command(next_help_heading = "Response cache")]
pub(crate) struct CacheOptions {
    /// Setting of a response cache. Accepted, without effect yet: no response is cached. May be given several times.
    #[arg(long, value_name = "CACHE,SETTING=VALUE", value_parser = setting, action = ArgAction::Append)]
    cache_config: Vec<CacheSetting>,

    /// Folder with a folder for each installed cache. Accepted, without effect yet.
    #[arg(long, value_name = "PATH")]
    cache_directory: Option<String>,

    /// Deprecated: --cache-config=local,size=BYTES. Accepted, without effect yet.
    #[arg(long, value_name = "BYTES")]
    response_cache_byte_size: Option<u64>,
}

/// One `--cache-config`.
#[derive(Clone, Debug)]
struct CacheSetting {
    cache: String,
}

impl CacheOptions {
    /// Options that contradict each other.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let mut caches = self.cache_config.iter().map(|setting| &setting.cache);
        let first = caches.next();
        if first.is_some() && self.response_cache_byte_size.is_some() {
            Some(
                "--response-cache-byte-size is --cache-config=local,size=BYTES; only one of them may be given",
            )
        } else if caches.any(|cache| Some(cache) != first) {
            Some("--cache-config names several caches; a server has one")
        } else {
            None
        }
    }

    /// What was given and has no effect.
    pub(super) fn advice(&self) -> impl Iterator<Item = String> {
        without_effect(
            "the response cache is not built yet, so every request is executed",
            [
                (!self.cache_config.is_empty(), "--cache-config"),
                (self.response_cache_byte_size.is_some(), "--response-cache-byte-size"),
                (self.cache_directory.is_some(), "--cache-directory"),
            ],
        )
    }
}

/// Triton's form: the cache up to the first comma, the setting up to the next equals sign, and the value.
fn setting(text: &str) -> Result<CacheSetting, String> {
    match text.split_once(',').and_then(|(cache, rest)| Some((cache, rest.split_once('=')?))) {
        Some((cache, (name, value))) if ![cache, name, value].contains(&"") => {
            Ok(CacheSetting { cache: cache.to_owned() })
        }
        _ => Err("must be CACHE,SETTING=VALUE, such as local,size=1048576".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        cache: CacheOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<CacheOptions, clap::Error> {
        Line::try_parse_from([&["nereid"], arguments].concat()).map(|line| line.cache)
    }

    #[test]
    fn each_option_given_is_reported() {
        for (arguments, reported) in [
            ([].as_slice(), 0),
            (&["--cache-directory=/opt/tritonserver/caches"], 1),
            (&["--cache-directory="], 1),
            (&["--response-cache-byte-size=1048576"], 1),
            (&["--cache-config=local,size=1048576", "--cache-config=local,x=a,b=c"], 1),
            (&["--cache-config=redis,host=a", "--cache-directory=b"], 2),
        ] {
            let options = parsed(arguments).unwrap();
            assert_eq!(options.contradiction(), None, "{arguments:?}");
            assert_eq!(options.advice().count(), reported, "{arguments:?}");
        }
    }

    #[test]
    fn what_the_reference_refuses_is_refused() {
        for text in ["local", "local,size", ",size=1", "size=1", "local,=1", "local,size="] {
            assert!(parsed(&[&format!("--cache-config={text}")]).is_err(), "{text}");
        }
        for text in ["x", "-1", ""] {
            assert!(parsed(&[&format!("--response-cache-byte-size={text}")]).is_err(), "{text}");
        }
        for arguments in [
            ["--response-cache-byte-size=1", "--cache-config=local,size=1"],
            ["--cache-config=local,size=1", "--cache-config=redis,host=a"],
        ] {
            assert!(parsed(&arguments).unwrap().contradiction().is_some(), "{arguments:?}");
        }
    }
}
